"""Pure rules of the control plane: state machines, ranking, views and clocks. No I/O; time is passed in."""
