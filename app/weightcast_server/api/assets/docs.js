// Starts Swagger UI on the server's own OpenAPI document; relative, so that it works behind a path prefix.
window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
});
