/* Workspaces of a checked run: made by the host, and given out again once freed.
 *
 * Kernels allocate some thousands a run, from all of their threads at once. Blocks are few, never removed while the
 * kernel runs, and taken and returned without a lock.
 */
#include <stdint.h>
#include <stdlib.h>

typedef struct Block { struct Block *next; void *memory; uint64_t bytes; int used; } Block;

static Block *blocks;
static void *(*make)(uint64_t bytes); /* NULL where it cannot */

void plevel_begin(void *(*maker)(uint64_t)) { make = maker; }
void plevel_end(void) {
  for (Block *next; blocks; blocks = next) {
    next = blocks->next;
    free(blocks);
  }
}

/* TVM's hooks. */
void *plevel_allocate(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  for (Block *block = __atomic_load_n(&blocks, __ATOMIC_ACQUIRE); block; block = block->next)
    if (block->bytes == bytes && !__atomic_load_n(&block->used, __ATOMIC_RELAXED) &&
        !__atomic_exchange_n(&block->used, 1, __ATOMIC_ACQUIRE))
      return block->memory;
  Block *block = malloc(sizeof *block);
  void *memory = block ? make(bytes) : NULL;
  if (!memory) {
    free(block);
    return NULL;
  }
  *block = (Block){__atomic_load_n(&blocks, __ATOMIC_RELAXED), memory, bytes, 1};
  while (!__atomic_compare_exchange_n(&blocks, &block->next, block, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) continue;
  return memory;
}
int plevel_free(int type, int id, void *memory) {
  (void)type, (void)id;
  for (Block *block = __atomic_load_n(&blocks, __ATOMIC_ACQUIRE); block; block = block->next)
    if (block->memory == memory) {
      __atomic_store_n(&block->used, 0, __ATOMIC_RELEASE);
      return 0;
    }
  return -1;
}
