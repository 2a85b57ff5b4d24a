"""Sessions at other processes: values by id, with our own services and with any other."""
