"""Loaded by Python at start: a clock that is FAULT_CLOCK seconds off."""

import os
import time

offset = float(os.environ["FAULT_CLOCK"])
right_time, right_time_ns = time.time, time.time_ns
time.time = lambda: right_time() + offset
time.time_ns = lambda: right_time_ns() + int(offset * 1e9)
