"""Search: exact dense and BM25 engines, exclusions, fusion and run files.

==================  ===================================================================
`dense`             exact inner-product search, the fastest exact engine measured
`vectors`           what it searches: checked matrices, sources read block by block
`products`          how queries are multiplied with documents, and how far that is off
`candidates`        what can still be among the best while blocks go by
`bm25`              BM25 on bm25s
`index`             an index on disk: made by `encoding` of `shards`, one matrix through
                    `sharded_vectors`
`exclusions`        documents that a query may not find
`fusion`, `runs`    runs of several systems joined; TREC run files
==================  ===================================================================
"""
