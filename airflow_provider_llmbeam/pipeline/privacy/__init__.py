"""Personal data: it is masked before a prompt is rendered, and restored in what the sink stores."""
