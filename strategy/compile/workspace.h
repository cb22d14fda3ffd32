/* Workspaces of kernels, in the place of TVM's: memory that a call frees is there for the next one.
 *
 * A thread keeps the blocks that it took, newest first, until it ends or the library is unloaded, and at most as many
 * bytes as the blocks had that it ever used at once. Memory returned to the system at each call would cost a fault per
 * page at the next: more than the kernel's own time, where its workspace has megabytes. The macro PLEVEL_ALIGNMENT
 * stands before.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct WorkspaceBlock { struct WorkspaceBlock *next; uint64_t bytes; } WorkspaceBlock;
typedef struct Workspaces {
  struct Workspaces *next, **at; /* among those of all threads */
  WorkspaceBlock *first;
  uint64_t used, most;
} Workspaces;

static __thread Workspaces workspaces;
static Workspaces *workspaces_of_all;
static pthread_mutex_t workspaces_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t workspaces_key; /* for the end of a thread; made when the first block is to be kept */
static int workspaces_keyed;

static void workspaces_free(WorkspaceBlock *block) {
  for (WorkspaceBlock *next; block; block = next) {
    next = block->next;
    free(block);
  }
}
static void workspaces_end(void *thread) {
  Workspaces *own = (Workspaces *)thread;
  pthread_mutex_lock(&workspaces_lock);
  if ((*own->at = own->next)) own->next->at = own->at;
  pthread_mutex_unlock(&workspaces_lock);
  workspaces_free(own->first);
  own->first = NULL;
  own->at = NULL;
  own->used = own->most = 0;
}
/* Also at the program's end, when other threads may be in a kernel still: those keep theirs. */
__attribute__((destructor)) static void workspaces_unload(void) {
  if (!workspaces_keyed) return;
  pthread_key_delete(workspaces_key);
  pthread_mutex_lock(&workspaces_lock);
  for (Workspaces *own = workspaces_of_all; own; own = own->next) {
    if (own->used) continue;
    workspaces_free(own->first);
    own->first = NULL;
  }
  pthread_mutex_unlock(&workspaces_lock);
}
/* In a child of fork only the thread that forked goes on. */
static void workspaces_forked(void) {
  pthread_mutex_init(&workspaces_lock, NULL);
  workspaces_of_all = workspaces.at ? &workspaces : NULL;
  workspaces.next = NULL;
  if (workspaces.at) workspaces.at = &workspaces_of_all;
}
/* Have this thread keep its blocks; 0 where the system has no key left. */
static int workspaces_join(void) {
  Workspaces *own = &workspaces;
  if (own->at) return 1;
  pthread_mutex_lock(&workspaces_lock);
  if (!workspaces_keyed && !pthread_key_create(&workspaces_key, workspaces_end)) {
    workspaces_keyed = !pthread_atfork(NULL, NULL, workspaces_forked);
    if (!workspaces_keyed) pthread_key_delete(workspaces_key);
  }
  if (workspaces_keyed && !pthread_setspecific(workspaces_key, own)) {
    if ((own->next = workspaces_of_all)) own->next->at = &own->next;
    own->at = &workspaces_of_all;
    workspaces_of_all = own;
  }
  pthread_mutex_unlock(&workspaces_lock);
  return own->at != NULL;
}

/* Aligned memory; NULL without. */
static void *workspace_take(uint64_t bytes) {
  uint64_t rounded = (bytes + 4095) & ~(uint64_t)4095;
  WorkspaceBlock **best = NULL, *found;
  /* A small request leaves a large block to the large one that may follow. */
  for (WorkspaceBlock **at = &workspaces.first; *at; at = &(*at)->next)
    if ((*at)->bytes >= bytes && (*at)->bytes / 8 <= rounded && (!best || (*at)->bytes < (*best)->bytes)) best = at;
  if (best) {
    found = *best;
    *best = found->next;
  } else {
    if (rounded < bytes) return NULL;
    found = (WorkspaceBlock *)aligned_alloc(PLEVEL_ALIGNMENT, PLEVEL_ALIGNMENT + rounded);
    if (!found) return NULL;
    found->bytes = rounded;
  }
  workspaces.used += found->bytes;
  if (workspaces.used > workspaces.most) workspaces.most = workspaces.used;
  return (char *)found + PLEVEL_ALIGNMENT;
}
static void workspace_give_back(void *memory) {
  WorkspaceBlock *block = (WorkspaceBlock *)((char *)memory - PLEVEL_ALIGNMENT);
  workspaces.used -= block->bytes;
  block->next = workspaces.first;
  workspaces.first = block;
  uint64_t kept = 0;
  WorkspaceBlock **end = &workspaces.first;
  if (workspaces_join())
    while (*end && (kept += (*end)->bytes) <= workspaces.most) end = &(*end)->next;
  workspaces_free(*end);
  *end = NULL;
}

/* TVM's hooks. */
static void *workspace_alloc(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return workspace_take(bytes);
}
static int workspace_free(int type, int id, void *memory) {
  (void)type, (void)id;
  workspace_give_back(memory);
  return 0;
}
