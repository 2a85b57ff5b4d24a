"""Plans: from a computation of the language to programs that executors run.

In the order of processing:

1. Trace. `trace.py` runs the computation once on symbols. Calls unfold, names disappear, and the result is a *graph*
   (`graph.py`): a flat list of nodes, and functions over nodes for the intrinsics that take functions (`intrinsics.py`
   has their types). `plan.py` caches graphs by the identity and by the content of the computation.
2. Schedule. `schedule.py` cuts a graph into *tasks* (`tasks.py`): work at the server, phases of work at clients with
   the folds that consume their results, selections.
3. Program. The work of a task in one place is a *program* (`program.py`): steps over numbered slots that name what they
   run. `render.py` writes graphs, `program_ir.py` writes and reads programs as computations of the language, to be
   shown, tested and sent.
4. Link. Executors replace what steps name by operations that can be called (`Program.with_operations`).
5. Run. `interpreter.py` runs a linked program, once or for a column of clients.

What is derived from one of these objects is made once and stored in it (`made_once` in `foundations/caches.py`).
"""
