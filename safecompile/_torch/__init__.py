"""Facts about torch's private parts. They are looked up here and nowhere else; nothing here patches."""
