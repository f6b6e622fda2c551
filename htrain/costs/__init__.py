"""What a plan asks of the devices that run it: seconds, bytes and memory. One model for the search, the prediction, the checks and refusals."""
