"""Programs around the library: the demo and the report. The library itself never imports them."""
