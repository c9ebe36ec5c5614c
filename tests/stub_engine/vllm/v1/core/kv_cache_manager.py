"""KV events to order."""


class BlockRemoved:
    block_hashes = (b"a", b"b", b"c")


class BlockStored:
    block_hashes = (b"a",)


class KVCacheManager:
    def take_events(self):
        return [BlockStored(), BlockRemoved()]
