// The arithmetic of a decoder layer for a handful of rows on a CPU.
//
// Two properties matter more here than in a general library.
//
// Rows are independent: the numbers of one row never depend on how many other rows are computed with it. Each output
// is one chain of multiply-adds in a fixed order, whatever the tile. So verifying k drafts gives bit for bit the logits
// of k + 1 single steps, and a batch gives those of its members alone. Where a product and a sum are fused is written
// out (`fma`) and the compiler's own contraction is off: it decides loop by loop, and two tiles need not agree.
//
// Weights are read once: they lie in blocks of sixteen outputs, [outputs / 16][inputs][16], so that a product streams
// through memory and several rows share each weight while it is in a register. Weights that are exact in bfloat16 stay
// in 16 bits; the arithmetic is always float32.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>
#ifdef __FMA__
#include <immintrin.h>
#endif

// Lanes of two vectors by constant index.
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif

namespace {

// A number that threads wait for. They look at it a little while, then sleep: another program gets their processor.
class Signal {
 public:
  operator uint32_t() const { return value_; }
  void set(uint32_t value) { value_ = value; }
  uint32_t add(uint32_t more) { return value_ += more; }
  void wake() {
    if (!sleepers_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }
  template <class Done> void wait(const Done& done) {
    for (const auto end = Clock::now() + kLook; !done(value_); pause())
      if (Clock::now() > end) return sleep(done);
  }

 private:
  using Clock = std::chrono::steady_clock;
  // Longer than what lies between two calls of a pass: waking a thread takes as long as a small call.
  static constexpr std::chrono::microseconds kLook{100};

  template <class Done> void sleep(const Done& done) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_++;
    changed_.wait(lock, [&] { return done(value_); });
    sleepers_--;
  }

  static void pause() {  // leaves a core's other thread the execution units
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  alignas(64) std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
  alignas(64) std::mutex mutex_;
  std::condition_variable changed_;
};

// Threads that share out one call after another. Each begins with a share of its own, part by part, and goes on with what
// is left of the others': a thread that is kept from its processor holds up the part it is in and no other. Which
// thread computes a part changes no bit of it.
class Team {
 public:
  // Calls work(part) for each part, on up to `threads` threads, and returns when all are done.
  template <class Work> void share(long parts, int threads, const Work& work) {
    threads = std::min(threads, kMost);
    std::unique_lock<std::mutex> alone(calling_, std::defer_lock);
    if (threads < 2 || parts < 2 || !alone.try_lock()) {  // the team serves one call at a time
      for (long part = 0; part < parts; part++) work(part);
      return;
    }
    hire(threads);
    publish({&work, [](const void* all, long part) { (*static_cast<const Work*>(all))(part); }, parts, threads});
    take_parts(0, threads);
    left_.wait([](uint32_t left) { return left == 0; });
  }

 private:
  struct Call {
    const void* work;
    void (*run)(const void*, long);
    long parts;
    int threads;
  };
  struct alignas(64) Share { std::atomic<uint64_t> unclaimed{0}; };  // number of the call, then how many parts
  static constexpr int kMost = 256;  // threads

  void hire(int threads) {
    invited_ = threads;
    for (; hired_ < threads; hired_++) try {
      std::thread([this, rank = hired_] { help(rank); }).detach();
    } catch (const std::system_error&) {}  // nobody waits for a helper that is not there
  }

  void publish(const Call& call) {
    call_ = call;
    left_.set(static_cast<uint32_t>(call.parts));
    const uint64_t number = number_ + 1;
    for (int i = 0; i < call.threads; i++)
      shares_[i].unclaimed = number << 32 | static_cast<uint64_t>(end_of(i) - end_of(i - 1));
    number_.add(1);
    number_.wake();
  }

  long end_of(int share) const { return call_.parts * (share + 1) / call_.threads; }

  [[noreturn]] void help(int rank) {
    for (uint32_t seen = 0;; seen = number_) {
      if (const int threads = invited_; rank < threads) take_parts(rank, threads);
      number_.wait([&](uint32_t number) { return number != seen; });
    }
  }

  // Computes parts, those of its own share first, until none is unclaimed.
  void take_parts(int rank, int shares) {
    uint32_t taken = 0;
    for (int i = 0; i < shares; i++) taken += take_share((rank + i) % shares);
    if (taken && left_.add(-taken) == 0) left_.wake();
  }

  // A claim holds only for the call it was made in, and that call stays until its last part is done.
  uint32_t take_share(int share) {
    uint32_t taken = 0;
    uint64_t unclaimed = shares_[share].unclaimed;
    while (const uint32_t left = static_cast<uint32_t>(unclaimed)) {
      if (!shares_[share].unclaimed.compare_exchange_weak(unclaimed, unclaimed - 1)) continue;
      call_.run(call_.work, end_of(share) - left);
      taken++;
      unclaimed = shares_[share].unclaimed;
    }
    return taken;
  }

  std::mutex calling_;
  int hired_ = 1;  // the caller is one of them
  std::atomic<int> invited_{0};
  Call call_{};
  Signal left_, number_;  // parts that are not done; number of the call
  Share shares_[kMost];
};

Team& team = *new Team;  // never destroyed: its threads may outlive `main`

typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(32)));
constexpr long kLanes = 8, kBlock = 16, kMaxRows = 6;
constexpr long kParts = 4;  // of a thread's share of a product
constexpr long kAhead = 64;  // inputs between use and prefetch: 2 kB of bfloat16 hide a memory access

inline Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
inline void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }
inline Lanes splat(float v) { return Lanes{v, v, v, v, v, v, v, v}; }
// a * b + c, rounded once where the processor can; one way throughout on any machine.
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
#if defined(__FMA__)
  return reinterpret_cast<Lanes>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b),
                                                 reinterpret_cast<__m256>(c)));
#elif defined(__FP_FAST_FMAF)
  for (int j = 0; j < kLanes; j++) c[j] = __builtin_fmaf(a[j], b[j], c[j]);
  return c;
#else
  return a * b + c;
#endif
}
inline float sum(Lanes v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// Eight sums at once: lane j of the result is the sum of lanes[j].
inline Lanes sum_each(const Lanes lanes[8]) {
  Lanes pairs[4], fours[2];
  for (int i = 0; i < 4; i++)
    pairs[i] = PICK(lanes[2 * i], lanes[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
               PICK(lanes[2 * i], lanes[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  for (int i = 0; i < 2; i++)
    fours[i] = PICK(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               PICK(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  return PICK(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         PICK(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// One step of a packed block: outputs 0-7 and outputs 8-15 of one input.
struct Pair { Lanes low, high; };

// bfloat16: word j holds output j in its lower half and output j + 8 in its upper half.
inline Pair weights_at(const uint32_t* block, long input) {
  const Words words = *reinterpret_cast<const Words*>(block + input * kLanes);
  return {reinterpret_cast<Lanes>(words << 16), reinterpret_cast<Lanes>(words & 0xffff0000u)};
}
inline Pair weights_at(const float* block, long input) {
  return {load(block + input * kBlock), load(block + input * kBlock + kLanes)};
}
template <class Weight> constexpr long stride_of() { return sizeof(Weight) == 0 ? 0 : kLanes; }
template <> constexpr long stride_of<float>() { return kBlock; }

// Eight outputs of one row, of which `valid` exist.
inline void finish(Lanes value, const float* bias, float* to, long valid, bool add) {
  if (valid >= kLanes) {
    if (bias) value += load(bias);
    store(to, add ? load(to) + value : value);
    return;
  }
  for (long j = 0; j < valid; j++) {
    const float one = bias ? value[j] + bias[j] : value[j];
    to[j] = add ? to[j] + one : one;
  }
}

// [kRows rows] x [kBlocks blocks of 16 outputs].
template <class Weight, int kBlocks, int kRows>
inline void tile(const float* rows, const Weight* weights, const float* bias, float* out, long inputs, long outputs,
                 long valid, bool add) {
  const long block_size = inputs * stride_of<Weight>();
  Lanes total[kBlocks][kRows][2] = {};
  for (long input = 0; input < inputs; input++) {
    Pair weight[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; b++) {
      __builtin_prefetch(weights + b * block_size + (input + kAhead) * stride_of<Weight>());
      weight[b] = weights_at(weights + b * block_size, input);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
      const Lanes value = splat(rows[m * inputs + input]);
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; b++) {
        total[b][m][0] = fma(weight[b].low, value, total[b][m][0]);
        total[b][m][1] = fma(weight[b].high, value, total[b][m][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; b++)
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
      float* to = out + m * outputs + b * kBlock;
      const float* offset = bias ? bias + b * kBlock : nullptr;
      finish(total[b][m][0], offset, to, valid - b * kBlock, add);
      finish(total[b][m][1], offset ? offset + kLanes : nullptr, to + kLanes, valid - b * kBlock - kLanes, add);
    }
}

template <class Weight>
void rows_of_block(const float* rows, const Weight* weights, const float* bias, float* out, long count, long inputs,
                   long outputs, long valid, bool add) {
  const long parts = (count + kMaxRows - 1) / kMaxRows;
  for (long part = 0, m = 0; part < parts; part++) {
    const long size = count / parts + (part < count % parts);
    const float* from = rows + m * inputs;
    float* to = out + m * outputs;
    switch (size) {
      case 1: tile<Weight, 1, 1>(from, weights, bias, to, inputs, outputs, valid, add); break;
      case 2: tile<Weight, 1, 2>(from, weights, bias, to, inputs, outputs, valid, add); break;
      case 3: tile<Weight, 1, 3>(from, weights, bias, to, inputs, outputs, valid, add); break;
      case 4: tile<Weight, 1, 4>(from, weights, bias, to, inputs, outputs, valid, add); break;
      case 5: tile<Weight, 1, 5>(from, weights, bias, to, inputs, outputs, valid, add); break;
      case 6: tile<Weight, 1, 6>(from, weights, bias, to, inputs, outputs, valid, add); break;
    }
    m += size;
  }
}

template <class Weight>
void linear(const float* rows, const Weight* weights, const float* bias, float* out, long count, long inputs,
            long outputs, bool add, int threads) {
  const long blocks = (outputs + kBlock - 1) / kBlock, block_size = inputs * stride_of<Weight>();
  const long least = count == 1 ? 4 : 1;  // one row alone needs several blocks to keep the multipliers busy
  const long shares = std::min<long>(threads, std::max(1L, blocks / 4));
  team.share(shares * kParts, shares, [&](long part) {
    const long first = blocks * (part / kParts) / shares, last = blocks * (part / kParts + 1) / shares;
    const long size = (last - first + kParts * least - 1) / (kParts * least) * least;
    long b = first + part % kParts * size;
    const long end = std::min(b + size, last);
    while (b < end) {
      const Weight* block = weights + b * block_size;
      const float* offset = bias ? bias + b * kBlock : nullptr;
      const long valid = outputs - b * kBlock;
      if (count == 1 && end - b >= 4) {
        tile<Weight, 4, 1>(rows, block, offset, out + b * kBlock, inputs, outputs, valid, add);
        b += 4;
      } else {
        rows_of_block(rows, block, offset, out + b * kBlock, count, inputs, outputs, valid, add);
        b += 1;
      }
    }
  });
}

// e^x to about 2e-7 relative (range reduction by ln 2, Taylor series of degree 7 on the rest); 0 for x < -87, infinite
// for x > 88: beyond these the power of two has no room in the exponent.
inline Lanes exponential(Lanes x) {
  const Lanes low = splat(-87.0f), high = splat(88.0f);
  const Ints tiny = x < low, huge = x > high;
  x = tiny ? low : huge ? high : x;
  const Lanes shifted = x * 1.44269504f + splat(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  const Lanes whole = shifted - splat(12582912.0f);
  const Lanes rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Lanes series = splat(1.0f / 5040);
  for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    series = fma(series, rest, splat(term));
  const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
  return tiny ? splat(0.0f) : huge ? splat(INFINITY) : series * reinterpret_cast<Lanes>(power);
}

float mean_square(const float* row, long width) {
  Lanes total = {};
  for (long i = 0; i < width; i += kLanes) total = fma(load(row + i), load(row + i), total);
  return sum(total) / width;
}

void normalise(const float* row, const float* weight, float* out, long width, float eps) {
  const float scale = 1.0f / std::sqrt(mean_square(row, width) + eps);
  for (long i = 0; i < width; i += kLanes) store(out + i, load(row + i) * scale * load(weight + i));
}

// Rotary position embedding, halves rotated against each other; `angles` holds cosines, then sines, [2][size / 2].
void rotate(const float* from, const float* angles, float* to, long size) {
  const long half = size / 2;
  for (long i = 0; i < half; i += kLanes) {
    const Lanes a = load(from + i), b = load(from + half + i), c = load(angles + i), s = load(angles + half + i);
    store(to + i, a * c - b * s);
    store(to + half + i, b * c + a * s);
  }
}

// softmax(query . keys) . values for one query over `visible` positions; `scores` has room for them and eight more.
void attend_one(const float* query, const float* keys, const float* values, float* scores, float* out, long visible,
                long size, float scale) {
  Lanes largest = splat(-INFINITY);
  for (long p = 0; p < visible; p += kLanes) {  // caches have room for whole groups of eight positions
    Lanes products[kLanes] = {};
    for (long i = 0; i < size; i += kLanes)
#pragma GCC unroll 8
      for (long j = 0; j < kLanes; j++) products[j] = fma(load(query + i), load(keys + (p + j) * size + i), products[j]);
    Lanes score = sum_each(products) * scale;
    for (long j = visible - p; j < kLanes; j++) score[j] = -INFINITY;
    store(scores + p, score);
    largest = score > largest ? score : largest;
  }
  float top = largest[0];
  for (long j = 1; j < kLanes; j++) top = std::max(top, largest[j]);
  Lanes mass = {};
  for (long p = 0; p < visible; p += kLanes) {
    const Lanes weight = exponential(load(scores + p) - splat(top));
    store(scores + p, weight);
    mass += weight;
  }
  const Lanes share = splat(1.0f / sum(mass));
  for (long i = 0; i < size; i += 2 * kLanes) {
    Lanes first = {}, second = {}, third = {}, fourth = {};  // even and odd positions apart: shorter chains of additions
    long p = 0;
    for (; p + 1 < visible; p += 2) {
      const Lanes even = splat(scores[p]), odd = splat(scores[p + 1]);
      const float* value = values + p * size + i;
      first = fma(load(value), even, first);
      second = fma(load(value + kLanes), even, second);
      third = fma(load(value + size), odd, third);
      fourth = fma(load(value + size + kLanes), odd, fourth);
    }
    if (p < visible) {
      const Lanes last = splat(scores[p]);
      first = fma(load(values + p * size + i), last, first);
      second = fma(load(values + p * size + i + kLanes), last, second);
    }
    store(out + i, (first + third) * share);
    store(out + i + kLanes, (second + fourth) * share);
  }
}

}  // namespace

extern "C" {

// Heads of one attention layer; norms of queries and keys are null where the model has none.
struct Heads {
  long queries, groups, size;
  float scale, eps;
  const float *query_norm, *key_norm;
};

// [outputs, inputs] to blocks; outputs beyond the last stay zero. `packed` arrives zeroed.
void draftproof_pack_bf16(const uint16_t* weights, uint32_t* packed, long inputs, long outputs) {
  for (long n = 0; n < outputs; n++)
    for (long k = 0; k < inputs; k++)
      packed[((n / kBlock) * inputs + k) * kLanes + n % kLanes] |=
          static_cast<uint32_t>(weights[n * inputs + k]) << (n % kBlock < kLanes ? 0 : 16);
}
void draftproof_pack_f32(const float* weights, float* packed, long inputs, long outputs) {
  for (long n = 0; n < outputs; n++)
    for (long k = 0; k < inputs; k++) packed[((n / kBlock) * inputs + k) * kBlock + n % kBlock] = weights[n * inputs + k];
}

// out[count, outputs] (+)= rows[count, inputs] . weights^T + bias
void draftproof_linear_bf16(const float* rows, const uint32_t* packed, const float* bias, float* out, long count,
                            long inputs, long outputs, int add, int threads) {
  linear(rows, packed, bias, out, count, inputs, outputs, add, threads);
}
void draftproof_linear_f32(const float* rows, const float* packed, const float* bias, float* out, long count,
                           long inputs, long outputs, int add, int threads) {
  linear(rows, packed, bias, out, count, inputs, outputs, add, threads);
}

// Root-mean-square norm of rows[count, width].
void draftproof_rms_norm(const float* rows, const float* weight, float* out, long count, long width, float eps) {
  for (long m = 0; m < count; m++) normalise(rows + m * width, weight, out + m * width, width, eps);
}

// out[count, width] = silu(gate) * up, from rows of [gate, up].
void draftproof_silu_mul(const float* gate_up, float* out, long count, long width, int threads) {
  team.share(count, count > 4 ? threads : 1, [&](long m) {
    for (long i = 0; i < width; i += kLanes) {
      const Lanes gate = load(gate_up + m * 2 * width + i), up = load(gate_up + m * 2 * width + width + i);
      store(out + m * width + i, gate / (splat(1.0f) + exponential(-gate)) * up);
    }
  });
}

// One layer's attention over a ragged batch. Sequence s brings counts[s] new rows of qkv[tokens, (queries + 2 groups) *
// size]; caches[s] holds lengths[s] positions in [layers][keys, values][groups][capacities[s]][size]. New keys and
// values are written, then every new row attends to all positions up to its own. out[tokens, queries * size].
void draftproof_attend(const float* qkv, const float* angles, float* out, const Heads* heads, long sequences, long layer,
                       float* const* caches, const long* lengths, const long* counts, const long* capacities,
                       int threads) {
  const long size = heads->size, group = heads->queries / heads->groups, width = (heads->queries + 2 * heads->groups) * size;
  struct Row { float *keys, *values; long capacity, position; };
  std::vector<Row> rows;
  long longest = 0;
  for (long s = 0; s < sequences; s++) {
    const long half = heads->groups * capacities[s] * size;
    float* keys = caches[s] + layer * 2 * half;
    for (long i = 0; i < counts[s]; i++) rows.push_back({keys, keys + half, capacities[s], lengths[s] + i});
    longest = std::max(longest, lengths[s] + counts[s]);
  }
  const long total = static_cast<long>(rows.size());
  std::vector<float> normed(size);
  for (long t = 0; t < total; t++)
    for (long g = 0; g < heads->groups; g++) {
      const float* key = qkv + t * width + (heads->queries + g) * size;
      const float* value = key + heads->groups * size;
      const Row row = rows[t];
      const long at = (g * row.capacity + row.position) * size;
      if (heads->key_norm) {
        normalise(key, heads->key_norm, normed.data(), size, heads->eps);
        key = normed.data();
      }
      rotate(key, angles + t * size, row.keys + at, size);
      std::copy(value, value + size, row.values + at);
    }
  team.share(total * heads->queries, threads, [&](long part) {
    thread_local std::vector<float> room;
    room.resize(2 * size + longest + kLanes);
    float *normed = room.data(), *query = normed + size, *scores = query + size;
    const long t = part / heads->queries, h = part % heads->queries;
    const float* from = qkv + t * width + h * size;
    const Row row = rows[t];
    const long base = (h / group) * row.capacity * size;
    if (heads->query_norm) {
      normalise(from, heads->query_norm, normed, size, heads->eps);
      from = normed;
    }
    rotate(from, angles + t * size, query, size);
    attend_one(query, row.keys + base, row.values + base, scores, out + (t * heads->queries + h) * size,
               row.position + 1, size, heads->scale);
  });
}

}  // extern "C"
