"""Devices: they compile kernels and run programs of launches. One file a device, one contract for all."""
