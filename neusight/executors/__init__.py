"""What kernels cost on a device: one executor a kind of device, found by ``DeviceSpec.kind``."""
