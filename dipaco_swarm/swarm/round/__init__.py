"""One outer round of one module, between peers."""
