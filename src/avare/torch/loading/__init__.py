"""From a dataset or a stream to weighted batches: what is drawn, loaded, scored and received.

Read in this order:

- `avare.torch.loading.loader`: the ``DataLoader`` that users make.
- `avare.torch.loading.cursor`: where an epoch is.
- `avare.torch.loading.second_stage`: how a batch is chosen from a pool, and what a `Source` of units is.
- `avare.torch.loading.batch_sampler` and `avare.torch.loading.stream`: the two sources.
- `avare.torch.loading.ranks`: what several processes share.
"""
