"""Plans: from a computation as the language writes it to programs that executors run.

In the order in which a computation meets them:

1. Trace. `trace.py` runs the computation once on symbols. Calls unfold, names disappear, and a *graph* is left
   (`graph.py`): a flat list of nodes, and functions over nodes for the intrinsics that take functions (`intrinsics.py`
   has their types). `plan.py` keeps graphs, found by the identity and by the content of the computation.
2. Schedule. `schedule.py` cuts a graph into *tasks* (`tasks.py`): work at the server, phases of work at clients with
   the folds that consume their results, selections.
3. Program. What a task does in one place is a *program* (`program.py`): steps over numbered slots that name what they
   run. `sole_readers.py` finds which results only a fold reads. `render.py` writes graphs, `program_ir.py` writes and
   reads programs as computations of the language, to be shown, tested and sent.
4. Link. Executors replace what steps name by operations that can be called (`Program.with_operations`).
5. Run. `interpreter.py` runs a linked program, once or for a column of clients.

What is made of one of these objects is made once and kept with it (`made_once.py`).
"""
