// Hopper's wgmma on a processor: part of cuda_emulation.h.
//
// A product reads its operands through their descriptors when it starts, and gives its sums when it is
// waited for, as late as the device may. In between, what it reads must stay as it is. What a thread has
// copied must be fenced by that thread, and all threads have met at a barrier, before a product reads it.
// What breaks these rules of the PTX ISA ends the launch; what is read too early gives a wrong answer.
// Only the 128-byte swizzle is known: of both operands along k, and of b along n where a is in registers.
#pragma once

namespace emulation {
constexpr int kPiece = 16;  // bytes: what is copied, swizzled and guarded as one

// Ends a thread, and with it the launch; the first one says why.
inline void fail(const char* what) {
  if (!trapped) std::fprintf(stderr, "thread %d: %s\n", self->number, what);
  trapped = true;
  end_fibre();
}

inline std::vector<int> readers;     // by piece of shared memory: products that are not complete
inline std::vector<unsigned> seen;  // by piece: after how many barriers products see what was copied
constexpr unsigned kNever = ~0u;

// What a warp's quarter of a product reads: 16 rows of a, all rows of b, 16 steps of k.
struct Operands {
  std::vector<unsigned> pieces;
  std::vector<std::array<char, kPiece>> read;
  std::vector<float> a, b;

  ~Operands() {
    for (unsigned piece : pieces) --readers[piece];
  }
  bool unchanged() const {
    for (size_t i = 0; i < pieces.size(); ++i)
      if (std::memcmp(dynamic_shared + pieces[i] * kPiece, read[i].data(), kPiece)) return false;
    return true;
  }
};
struct Product {
  std::shared_ptr<Operands> operands;
  std::vector<float*> sums;
  bool adds = true;
  std::vector<std::pair<const unsigned*, unsigned>> held;  // the thread's registers of a, and what they had
};
// What a thread of a warpgroup has started, by group.
struct Products {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  bool fenced;
  std::vector<unsigned> landed;
};
inline std::vector<Products> products;
inline std::vector<std::shared_ptr<Operands>> started;  // by warp, the newest

inline void begin_products(size_t threads, size_t shared_bytes) {
  products.assign(threads, {});
  started.assign((threads + kWarp - 1) / kWarp, nullptr);
  readers.assign(shared_bytes / kPiece + 1, 0);
  seen.assign(shared_bytes / kPiece + 1, 0);
}

inline void before_copy(unsigned to) {
  if (readers[to / kPiece]) fail("a copy overwrites what a product reads that has not been waited for");
}
inline void after_copy(unsigned to) {
  seen[to / kPiece] = kNever;
  products[self->number].landed.push_back(to / kPiece);
}
inline void fence_proxy() {
  for (unsigned piece : products[self->number].landed) seen[piece] = block_barrier.generation + 1;
  products[self->number].landed.clear();
}
inline void fence_group() { products[self->number].fenced = true; }

// Where an operand starts, and two distances of its parts; checks that it is swizzled as we know.
struct Described { unsigned start, distance, panel; };
inline Described read_descriptor(uint64_t from) {
  auto field = [&](int low) { return unsigned(from >> low & 0x3FFF) << 4; };
  if (from >> 62 != 1 || from >> 46 & 0xFFFF) fail("only the 128-byte swizzle is emulated");
  return {field(0), field(32), field(16)};
}

// Reads the piece at a plain address, if it has come.
template <class T> void read_piece(Operands& into, unsigned plain, T (&values)[8]) {
  // Bits 4 to 6 of an address are turned by its bits 7 to 9.
  unsigned piece = (plain ^ (plain >> 7 & 7) << 4) / kPiece;
  if (piece >= readers.size() - 1) return fail("an operand lies beyond the shared memory");
  if (seen[piece] == kNever) return fail("a product reads a copy without a fence.proxy.async");
  if (seen[piece] > block_barrier.generation) return fail("a product reads a copy before a barrier");
  const char* at = dynamic_shared + piece * kPiece;
  into.pieces.push_back(piece);
  into.read.emplace_back();
  std::memcpy(into.read.back().data(), at, kPiece);
  ++readers[piece];
  std::memcpy(values, at, kPiece);
}

// Reads 16 steps of k of some rows, eight rows to an atom.
template <class T> void read_rows(Operands& into, std::vector<float>& numbers, uint64_t from, int first, int rows) {
  Described at = read_descriptor(from);
  if (at.start % 1024 >= 128) return fail("a swizzled operand starts within an atom of 1024 bytes");
  for (int row = first; row < first + rows; ++row)
    for (int half = 0; half < 2; ++half) {
      T values[8];
      read_piece(into, at.start + row / 8 * at.distance + row % 8 * 128 + half * kPiece, values);
      for (T value : values) numbers.push_back(float(value));
    }
}

// Reads 16 rows along k of some columns: 64 columns to a panel, eight rows to an atom. Gives them by columns.
template <class T> void read_columns(Operands& into, std::vector<float>& numbers, uint64_t from, int columns) {
  Described at = read_descriptor(from);
  if (at.start % 1024) return fail("a swizzled operand starts within an atom of 1024 bytes");
  numbers.resize(columns * 16);
  for (int k = 0; k < 16; ++k)
    for (int column = 0; column < columns; column += 8) {
      T values[8];
      read_piece(into, at.start + column / 64 * at.panel + k / 8 * at.distance + k % 8 * 128 + column % 64 * 2, values);
      for (int i = 0; i < 8; ++i) numbers[(column + i) * 16 + k] = float(values[i]);
    }
}

// Lets the first lane of a warp read what all of them describe, and notes the product.
template <class Read> void start_product(uint64_t described, Product product, Read read) {
  Products& mine = products[self->number];
  Warp& near = warp();
  int number = self->number / kWarp;
  if (!mine.fenced) fail("a product without a wgmma.fence");
  near.slots[self->number % kWarp] = described;
  wait(near.barrier, near.alive);
  if (near.slots[self->number % kWarp] != near.slots[0]) fail("threads of a warp describe different operands");
  if (self->number % kWarp == 0) {
    started[number] = std::make_shared<Operands>();
    read(*started[number]);
  }
  wait(near.barrier, near.alive);
  product.operands = started[number];
  mine.open.push_back(std::move(product));
  wait(near.barrier, near.alive);
  if (self->number % kWarp == 0) started[number] = nullptr;
}

// wgmma.mma_async.m64nNk16: N / 2 sums, and the descriptors of a and b.
template <class T, bool adds, class... A> void multiply_group(A&&... given) {
  constexpr int count = sizeof...(A) - 2;
  const void* all[] = {&given...};
  uint64_t a, b;
  std::memcpy(&a, all[count], 8);
  std::memcpy(&b, all[count + 1], 8);
  Product product;
  product.adds = adds;
  for (int i = 0; i < count; ++i) product.sums.push_back(static_cast<float*>(const_cast<void*>(all[i])));
  start_product(a ^ b * 31, std::move(product), [&](Operands& into) {
    read_rows<T>(into, into.a, a, self->number / kWarp % 4 * 16, 16);
    read_rows<T>(into, into.b, b, 0, count * 2);
  });
}

// The same with a in four registers, as in mma.m16n8k16, and b along n.
template <class T, class... A> void multiply_held(A&&... given) {
  constexpr int count = sizeof...(A) - 5;
  const void* all[] = {&given...};
  uint64_t b;
  std::memcpy(&b, all[count + 4], 8);
  Warp& near = warp();
  Product product;
  for (int i = 0; i < count; ++i) product.sums.push_back(static_cast<float*>(const_cast<void*>(all[i])));
  for (int i = 0; i < 4; ++i) {
    const unsigned* held = static_cast<const unsigned*>(all[count + i]);
    product.held.emplace_back(held, *held);
    near.operands[self->number % kWarp][i] = *held;
  }
  start_product(b, std::move(product), [&](Operands& into) {
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) {
        T value;
        value.bits = uint16_t(near.operands[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> (k % 2 * 16));
        into.a.push_back(float(value));
      }
    read_columns<T>(into, into.b, b, count * 2);
  });
}

inline void commit_products() {
  Products& mine = products[self->number];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
  mine.fenced = false;
}

inline void wait_products(size_t newest) {
  Products& mine = products[self->number];
  int lane = self->number % kWarp;
  for (; mine.groups.size() > newest; mine.groups.pop_front())
    for (const Product& product : mine.groups.front()) {
      const Operands& from = *product.operands;
      if (!from.unchanged()) fail("an operand changed before its product was waited for");
      for (auto [held, value] : product.held)
        if (*held != value) fail("a register of an operand changed before its product was waited for");
      for (size_t i = 0; i < product.sums.size(); ++i) {
        if (!product.adds) *product.sums[i] = 0;
        const float* a = &from.a[(lane / 4 + i / 2 % 2 * 8) * 16];
        const float* b = &from.b[(i / 4 * 8 + lane % 4 * 2 + i % 2) * 16];
        for (int k = 0; k < 16; ++k) *product.sums[i] += a[k] * b[k];
      }
    }
}
template <int newest, class... A> void wait_products_of(A&&...) { wait_products(newest); }

inline void end_products() {
  Products& mine = products[self->number];
  if (mine.open.size() + mine.groups.size()) fail("a thread ends before its products were waited for");
}
}  // namespace emulation
