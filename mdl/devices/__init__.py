"""Words for devices that the simulator and the live policies share."""
