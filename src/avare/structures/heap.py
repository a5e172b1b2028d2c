"""A binary heap of indices with keys, in two arrays: the smallest key is at the root."""

from avare._compilation import inlined


@inlined
def sift_down(heap, keys, size, index, key):
    """Put an index into the root's place, and move it down to where it belongs. O(log size)."""
    place = 0
    while True:
        child = 2 * place + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if child >= size or keys[child] >= key:
            break
        heap[place], keys[place] = heap[child], keys[child]
        place = child
    heap[place], keys[place] = index, key


@inlined
def sift_up(heap, keys, place, index, key):
    """Put an index into the last place, and move it up to where it belongs. O(log size)."""
    while place > 0:
        parent = (place - 1) // 2
        if keys[parent] <= key:
            break
        heap[place], keys[place] = heap[parent], keys[parent]
        place = parent
    heap[place], keys[place] = index, key
