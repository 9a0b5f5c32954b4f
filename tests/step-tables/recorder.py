"""Records which functions a running server calls. gdb runs this script: see steps.py.

The variable STEP_RECORDING names a JSON file with these fields:

* `process`: the ID of the server's process;
* `program`: the file of the program;
* `addresses`: for each function its addresses in the file of the program;
* `hits`: a file. Its first line is `ready`. Each further line has the name of the thread that calls
  a function, and the number of that function in `addresses`.
"""

import json
import os

import gdb

with open(os.environ["STEP_RECORDING"]) as file:
    recording = json.load(file)
hits = open(recording["hits"], "w", buffering=1)


class Hit(gdb.Breakpoint):
    def __init__(self, address, function):
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self.function = function

    def stop(self):
        hits.write(f"{gdb.selected_thread().name} {self.function}\n")
        return False


def load_address(process, program):
    """Returns the address at which the start of the program's file is mapped."""
    with open(f"/proc/{process}/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].strip() == program and int(fields[2], 16) == 0:
                return int(fields[0].split("-")[0], 16)
    raise AssertionError(f"the process {process} does not run {program}")


for setting in [
    "pagination off",
    "confirm off",
    "print thread-events off",
    "print inferior-events off",
    # Otherwise gdb writes all breakpoints into the process again after each hit.
    "breakpoint always-inserted on",
    # gdb needs no symbols here, and it attaches faster if it reads none.
    "sysroot /nonexistent",
    "auto-solib-add off",
    "auto-load no",
]:
    gdb.execute(f"set {setting}")
gdb.execute("handle all nostop noprint pass", to_string=True)
gdb.execute(f"attach {recording['process']}", to_string=True)
base = load_address(recording["process"], recording["program"])
for function, addresses in enumerate(recording["addresses"]):
    for address in addresses:
        Hit(base + address, function)
hits.write("ready\n")
# The process is resumed, and this call returns when it has ended.
gdb.execute("continue", to_string=True)
