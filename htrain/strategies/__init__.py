"""The compile half of each way to synchronise and to hold rows: what it does to the train net, the nets it adds, and what it tells the user."""
