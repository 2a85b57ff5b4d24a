"""Turns a computation of the language into programs that executors run.

The stages, in order of processing:

1. Trace. `trace.py` runs the computation once on symbols. Calls are unfolded, names disappear, and the result is a
   *graph* (`graph.py`): a flat list of nodes, plus functions over nodes as arguments of intrinsics, whose types
   `intrinsics.py` defines. `plan.py` caches graphs by the identity and by the content of the computation.
2. Schedule. `schedule.py` cuts a graph into *tasks* (`tasks.py`): work on the server, phases of work on clients with
   the folds that consume their results, and selections.
3. Program. The work of a task in one location is a *program* (`program.py`): steps over numbered slots, each of which
   names the operation to run. `render.py` writes graphs as computations of the language. `program_ir.py` writes
   programs as computations and reads them, so that they can be printed, tested and sent.
4. Link. Executors replace the names in steps with callable operations (`Program.with_operations`).
5. Run. `interpreter.py` runs a linked program, either once or for a column of clients.

Data that is derived from one of these objects is computed once and stored in the object (see `made_once` in
`foundations/caches.py`).
"""
