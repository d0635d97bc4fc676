"""A cloud and the devices that dial it: the parts that Colla and DCCL share."""
