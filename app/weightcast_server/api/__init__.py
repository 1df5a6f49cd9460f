"""HTTP in and out: routes, guards, problems and the OpenAPI document."""
