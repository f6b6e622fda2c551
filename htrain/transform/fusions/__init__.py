"""Fusions: ops that run as one because their values would otherwise cross memory in between.

    relu          Relu(FC(x))                              FCRelu(x)
    fields        Concat(x, Stack(TakeRows(r, p), ..))     StackRows(x, r, .., p, ..): rows of many tables in one pass
    interaction   Concat(x, Gather(MatMul(f, f^T)))        PairwiseDots(f): only the products that are read, behind x where f = StackRows(x, ..)
    tables        StackRows, its Lookups, Dedupes, SGD     StackTables and StepTables: tables of this device, read and stepped in place
    tables        TakeRows, their Lookups, Dedupes, SGD    TakeTables and StepTakenTables: the same for lists of ids of any shape, and tables of any widths
    pairs         StepTables(t, PairwiseDotsGradient(..))  PairwiseDotsSgd(t, ..): rows are stepped by a gradient that is never stored
    steps         Sgd(w, dw) of dw, .., dx = FCGradient    dx = FCInputGradient; FCSgd(w, b, x, dy): no gradient in memory
    products      FC; dw, .., dx = FCGradient              FastFC; FastFCGradient: by the library that is ahead on the role's CPU
    servers       Lookups whose ids come in one message    LookupTables: the rows of all these tables in one loop
                  SparseSgd, SparseAdagrad, .. of them     SparseStepTables: their steps, by ids and gradients that come in one message each

A file each; `htrain.compiler.fusing` says which are on, and in what order.
"""
