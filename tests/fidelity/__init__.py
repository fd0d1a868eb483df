"""Programs with one working thread, in plain torch and with the library: nothing may differ."""
