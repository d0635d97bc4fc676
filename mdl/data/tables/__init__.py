"""Tables of sensor values as phones, loggers and spreadsheets write them."""
