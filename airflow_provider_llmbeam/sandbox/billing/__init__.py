"""What the emulated accelerators cost."""
