// A table of rows that are found by ids of 64 bits. It grows with the ids that it has seen, up to a capacity, and rows
// that are no longer used leave. It does not need TensorFlow.
//
// It consists of segments, each with its own lock, index and rows, which share the ids by their hash: so threads seldom
// wait for each other, and what one of them does at once, such as to enlarge its index, is short. The memory of all rows
// is reserved at once, and the system gives it page by page when it is written.

#ifndef TRAINER_KERNELS_DYNAMIC_TABLE_H_
#define TRAINER_KERNELS_DYNAMIC_TABLE_H_

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "row_rules.h"

namespace trainer {

// The id of no row: it reads zeros, and never gets a row.
constexpr int64_t kNoId = std::numeric_limits<int64_t>::min();
// A segment has at least this many rows, so that chance fills all segments alike.
constexpr int64_t kSegmentRows = 4096;
constexpr int64_t kMaxSegments = 256;
// Rows of which the least recently used one leaves, as in Redis's approximated LRU.
constexpr int64_t kSample = 16;
// How many times rows that have expired are looked for within the time after which they do.
constexpr int64_t kSweeps = 4;
constexpr double kPi = 3.14159265358979323846;

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// A number in (0, 1), by its place in a sequence.
inline double Uniform(uint64_t key, uint64_t place) { return ((Mix(key + place) >> 11) + 0.5) * 0x1p-53; }

// How initial values are drawn: all the same; in [first, second); or with a mean and a standard deviation, perhaps
// without those that are more than two deviations away from it.
enum class Initializer { kConstant, kUniform, kNormal, kTruncated };

struct Options {
  int64_t dim;               // numbers of a row
  std::vector<float> slots;  // the initial value of each slot of the optimizer
  int64_t capacity;          // the most rows
  int64_t admit_after;       // an id gets a row when it is read for the time with this number, from 1 to 255
  int64_t expire_after;      // a row leaves that was not read for so long; 0: it does not
  Initializer initializer;
  float first, second;
  uint64_t seed;
};

// Memory of zeros that the system gives page by page.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  template <class T>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  size_t bytes_;
  void* data_;
};

class DynamicTable {
 public:
  // Runs a function on parts of [0, total).
  using Parallel = std::function<void(int64_t total, int64_t cost, std::function<void(int64_t, int64_t)>)>;

  // Some rows, whose numbers stay while they are in the table.
  struct Rows {
    std::vector<int64_t> numbers, ids;
    std::vector<int32_t> used;
    std::vector<float> values;  // [rows, width]
  };

  struct Counts {
    int64_t numbers = 0;  // all numbers of rows are below it
    int64_t rows = 0;
    int64_t left = 0;  // those that have left since the table was made, because others needed their place
    int32_t period = 0;
  };

  explicit DynamicTable(const Options& options)
      : options_(options),
        width_(options.dim * (1 + static_cast<int64_t>(options.slots.size()))),
        count_(SegmentsOf(options.capacity)),
        most_(options.capacity / count_),
        segments_(count_),
        values_(sizeof(float) * width_ * most_ * count_),
        entries_(sizeof(Entry) * most_ * count_) {}

  int64_t width() const { return width_; }
  const Options& options() const { return options_; }

  // Copies the values of the rows of some ids, each once, to [count, dim]. Ids without a row get one, or zeros.
  void Read(const int64_t* ids, int64_t count, int32_t now, float* found, const Parallel& parallel) {
    for (int64_t i = 0; i < count; i++) {
      if (ids[i] == kNoId) std::fill_n(found + i * options_.dim, options_.dim, 0.0f);
    }
    ForSegments(ids, count, parallel, [&](Segment& segment, int64_t number, const Item* items, int64_t size) {
      Sweep(segment, number, now);
      std::vector<int64_t> rows(size);
      for (int64_t i = 0; i < size; i++) {
        int64_t slot = Find(segment, number, ids[items[i].place], items[i].hash);
        if (slot < 0 && IsAdmitted(segment, ids[items[i].place])) {
          slot = Insert(segment, number, ids[items[i].place], items[i].hash, now);
          if (slot >= 0) Begin(Row(number, slot));
        }
        rows[i] = slot < 0 ? -1 : Row(number, slot);
        if (slot >= 0) entry(rows[i]).used = now;
      }
      for (int64_t i = 0; i < size; i++) {
        if (i + kAhead < size && rows[i + kAhead] >= 0) {
          const float* next = row(rows[i + kAhead]);
          const float* after = found + int64_t{items[i + kAhead].place} * options_.dim;
          for (int64_t j = 0; j < options_.dim; j += 16) {
            __builtin_prefetch(next + j);
            __builtin_prefetch(after + j, 1);
          }
        }
        float* to = found + int64_t{items[i].place} * options_.dim;
        if (rows[i] < 0) {
          std::fill(to, to + options_.dim, 0.0f);
        } else {
          std::copy(row(rows[i]), row(rows[i]) + options_.dim, to);
        }
      }
    });
  }

  // Updates the rows of some ids, each once, by a rule, and marks them. Ids without a row are passed over.
  void Update(const int64_t* ids, int64_t count, const float* gradients, const Rule& rule, const float* settings,
              const Parallel& parallel) {
    ForSegments(ids, count, parallel, [&](Segment& segment, int64_t number, const Item* items, int64_t size) {
      std::vector<int64_t> rows;
      std::vector<int32_t> places;
      for (int64_t i = 0; i < size; i++) {
        const int64_t slot = Find(segment, number, ids[items[i].place], items[i].hash);
        if (slot < 0) continue;
        rows.push_back(Row(number, slot));
        places.push_back(items[i].place);
        entry(rows.back()).period = segment.period;
      }
      Part part{0,           static_cast<int64_t>(rows.size()), options_.dim, rows.data(), gradients,
                places.data(), row(0), {}, width_, settings};
      for (int k = 0; k < kMaxSlots; k++) part.slots[k] = row(0) + (k < rule.slots ? k + 1 : 0) * options_.dim;
      rule.update(part);
    });
  }

  // The rows that have changed in period `since` or later, or have left then. Each segment begins another period.
  Rows Changed(int32_t since, int32_t period) {
    Rows found;
    for (int64_t number = 0; number < count_; number++) {
      Segment& segment = segments_[number];
      std::lock_guard<std::mutex> lock(segment.mutex);
      segment.period = period;
      for (int64_t slot = 0; slot < segment.size; slot++) {
        if (entry(Row(number, slot)).period >= since) Append(Row(number, slot), &found);
      }
    }
    return found;
  }

  // The rows with the numbers from `start` to `end`. Those that are not in use have the id kNoId.
  Rows Between(int64_t start, int64_t end) {
    Rows found;
    for (int64_t number = start; number < std::min(end, most_ * count_); number++) {
      Segment& segment = segments_[number % count_];
      std::lock_guard<std::mutex> lock(segment.mutex);
      if (number / count_ >= segment.size) {
        found.numbers.push_back(number);
        found.ids.push_back(kNoId);
        found.used.push_back(0);
        found.values.resize(found.values.size() + width_);
      } else {
        Append(number, &found);
      }
    }
    return found;
  }

  // Puts rows into the table, each with `width` values.
  void Load(const int64_t* ids, int64_t count, const int32_t* used, const float* values, const Parallel& parallel) {
    ForSegments(ids, count, parallel, [&](Segment& segment, int64_t number, const Item* items, int64_t size) {
      for (int64_t i = 0; i < size; i++) {
        const int64_t place = items[i].place, id = ids[place];
        int64_t slot = Find(segment, number, id, items[i].hash);
        if (slot < 0) slot = Insert(segment, number, id, items[i].hash, std::numeric_limits<int32_t>::max());
        if (slot < 0) continue;
        const int64_t at = Row(number, slot);
        entry(at).used = used[place];
        entry(at).period = segment.period;
        std::copy(values + place * width_, values + (place + 1) * width_, row(at));
      }
    });
  }

  void BeginPeriod(int32_t period) {
    for (auto& segment : segments_) {
      std::lock_guard<std::mutex> lock(segment.mutex);
      segment.period = period;
    }
  }

  Counts Count() {
    Counts found;
    for (auto& segment : segments_) {
      std::lock_guard<std::mutex> lock(segment.mutex);
      found.numbers = std::max(found.numbers, segment.size * count_);
      found.rows += segment.size - static_cast<int64_t>(segment.free.size());
      found.left += segment.left;
      found.period = std::max(found.period, segment.period);
    }
    return found;
  }

  // Bytes of what finds rows and tells which ones leave.
  int64_t IndexBytes() {
    int64_t found = 0;
    for (auto& segment : segments_) {
      std::lock_guard<std::mutex> lock(segment.mutex);
      found += sizeof(Known) * segment.index.capacity() + sizeof(int64_t) * segment.free.capacity();
      found += segment.seen.capacity() + sizeof(Entry) * segment.size + sizeof(Segment);
    }
    return found;
  }

 private:
  struct Entry {
    int64_t id;
    int32_t used;    // when it was last read
    int32_t period;  // of its last change
  };

  // A place of an index: the hash of an id, which tells nearly all others apart, and its slot + 1, or 0.
  struct Known {
    uint32_t hash;
    int32_t slot;
  };

  struct Segment {
    std::mutex mutex;
    std::vector<Known> index = std::vector<Known>(16);  // by hash, with linear probing
    std::vector<int64_t> free;                          // slots whose rows have left
    int64_t size = 0;                                   // slots that were used so far
    int64_t hand = 0, sweep = 0;                        // where the next sample, and the next sweep, begins
    int64_t swept = -1;                                 // when the last one was
    int64_t left = 0;
    int32_t period = 0;
    std::vector<uint8_t> seen;  // how often ids without a row were read: a count-min sketch of two rows
    int64_t sightings = 0;      // since its counts were halved
  };

  // An id of an op: its place there, and its hash.
  struct Item {
    int32_t place;
    uint32_t hash;
  };

  static int64_t SegmentsOf(int64_t capacity) {
    int64_t count = 1;
    while (count < kMaxSegments && capacity / (2 * count) >= kSegmentRows) count *= 2;
    return count;
  }

  int64_t Row(int64_t number, int64_t slot) const { return slot * count_ + number; }
  float* row(int64_t at) const { return values_.As<float>() + at * width_; }
  Entry& entry(int64_t at) const { return entries_.As<Entry>()[at]; }

  // Calls a function for each segment that has some of these ids, with its lock.
  template <class Function>
  void ForSegments(const int64_t* ids, int64_t count, const Parallel& parallel, Function function) {
    std::vector<uint32_t> hashes(count);
    std::vector<uint16_t> numbers(count);
    std::vector<int32_t> ends(count_ + 2);
    for (int64_t i = 0; i < count; i++) {
      const uint64_t hash = Mix(static_cast<uint64_t>(ids[i]));
      hashes[i] = static_cast<uint32_t>(hash >> 32);
      numbers[i] = ids[i] == kNoId ? count_ : hash & (count_ - 1);
      ends[numbers[i] + 1]++;
    }
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    std::vector<int32_t> next(ends.begin(), ends.end() - 1);
    std::unique_ptr<Item[]> items(new Item[count]);
    for (int64_t i = 0; i < count; i++) items[next[numbers[i]]++] = {static_cast<int32_t>(i), hashes[i]};
    parallel(count_, 1 + count * width_ / count_, [&](int64_t first, int64_t last) {
      for (int64_t number = first; number < last; number++) {
        const int64_t size = ends[number + 1] - ends[number];
        if (size == 0) continue;
        std::lock_guard<std::mutex> lock(segments_[number].mutex);
        Prefetch(segments_[number], number, items.get() + ends[number], size);
        function(segments_[number], number, items.get() + ends[number], size);
      }
    });
  }

  static uint64_t Place(const Segment& segment, uint32_t hash) { return hash & (segment.index.size() - 1); }

  // Fetches what `Find` needs for some ids: places of the index, and the entries of these.
  void Prefetch(const Segment& segment, int64_t number, const Item* items, int64_t size) const {
    for (int64_t i = 0; i < size; i++) __builtin_prefetch(&segment.index[Place(segment, items[i].hash)]);
    const uint64_t mask = segment.index.size() - 1;
    for (int64_t i = 0; i < size; i++) {
      uint64_t at = Place(segment, items[i].hash);
      while (segment.index[at].slot && segment.index[at].hash != items[i].hash) at = (at + 1) & mask;
      if (segment.index[at].slot) __builtin_prefetch(&entry(Row(number, segment.index[at].slot - 1)), 1);
    }
  }

  // The slot of an id; -1 if it has none.
  int64_t Find(const Segment& segment, int64_t number, int64_t id, uint32_t hash) const {
    const uint64_t mask = segment.index.size() - 1;
    for (uint64_t at = Place(segment, hash); segment.index[at].slot; at = (at + 1) & mask) {
      const Known& each = segment.index[at];
      if (each.hash == hash && entry(Row(number, each.slot - 1)).id == id) return each.slot - 1;
    }
    return -1;
  }

  // Whether an id that has no row gets one now. It is counted by the sketch of Cormode and Muthukrishnan (2005), of
  // which the least count of an id is raised, and all are halved at times, as by TinyLFU (Einziger and others, 2017).
  bool IsAdmitted(Segment& segment, int64_t id) {
    if (options_.admit_after <= 1) return true;
    if (segment.seen.empty()) {
      size_t size = 1024;
      while (static_cast<int64_t>(size) < 4 * most_) size *= 2;
      segment.seen.resize(2 * size);
    }
    const size_t size = segment.seen.size() / 2;
    const uint64_t hash = Mix(~static_cast<uint64_t>(id));
    uint8_t& first = segment.seen[hash & (size - 1)];
    uint8_t& second = segment.seen[size + (hash >> 32 & (size - 1))];
    const int count = std::min<int>(first, second) + 1;
    if (count >= options_.admit_after) return true;
    first = std::max<int>(first, count);
    second = std::max<int>(second, count);
    if (++segment.sightings >= static_cast<int64_t>(size / 2)) {
      for (auto& each : segment.seen) each /= 2;
      segment.sightings = 0;
    }
    return false;
  }

  // Gives an id a slot, perhaps that of a row that was not used for long; -1 if all are used now.
  int64_t Insert(Segment& segment, int64_t number, int64_t id, uint32_t hash, int32_t now) {
    int64_t slot;
    if (!segment.free.empty()) {
      slot = segment.free.back();
      segment.free.pop_back();
    } else if (segment.size < most_) {
      slot = segment.size++;
    } else {
      slot = LeastUsed(segment, number, now);
      if (slot < 0) return -1;
      Remove(segment, number, slot);
      segment.left++;
    }
    const int64_t rows = segment.size - static_cast<int64_t>(segment.free.size());
    // Segments enlarge their indices at different sizes, not all in the same step.
    const double full = 0.5 + 0.3 * static_cast<double>(number) / static_cast<double>(count_);
    if (static_cast<double>(rows) > full * static_cast<double>(segment.index.size())) Enlarge(segment);
    entry(Row(number, slot)) = {id, now, segment.period};
    Enter(segment, {hash, static_cast<int32_t>(slot + 1)});
    return slot;
  }

  static void Enter(Segment& segment, const Known& known) {
    const uint64_t mask = segment.index.size() - 1;
    uint64_t at = Place(segment, known.hash);
    while (segment.index[at].slot) at = (at + 1) & mask;
    segment.index[at] = known;
  }

  static void Enlarge(Segment& segment) {
    std::vector<Known> old(2 * segment.index.size());
    old.swap(segment.index);
    for (const Known& each : old) {
      if (each.slot) Enter(segment, each);
    }
  }

  // The least recently used one of some slots, all of which have a row; -1 if all rows are used now.
  int64_t LeastUsed(Segment& segment, int64_t number, int32_t now) {
    int64_t found = -1;
    int32_t used = now;
    for (int64_t i = 0; i < segment.size && (i < kSample || found < 0); i++) {
      if (segment.hand >= segment.size) segment.hand = 0;
      const int64_t slot = segment.hand++;
      if (entry(Row(number, slot)).used >= used) continue;
      used = entry(Row(number, slot)).used;
      found = slot;
    }
    return found;
  }

  // Takes a row out of the index. The entries after it move to where they are found without it.
  void Remove(Segment& segment, int64_t number, int64_t slot) {
    const uint64_t mask = segment.index.size() - 1;
    uint64_t at = Place(segment, Mix(static_cast<uint64_t>(entry(Row(number, slot)).id)) >> 32);
    while (segment.index[at].slot != slot + 1) at = (at + 1) & mask;
    for (uint64_t next = (at + 1) & mask; segment.index[next].slot; next = (next + 1) & mask) {
      const uint64_t wanted = Place(segment, segment.index[next].hash);
      if (((next - wanted) & mask) >= ((next - at) & mask)) {
        segment.index[at] = segment.index[next];
        at = next;
      }
    }
    segment.index[at] = {0, 0};
    entry(Row(number, slot)) = {kNoId, 0, segment.period};
  }

  // Lets some rows that have expired leave: as many are looked at as the time since the last sweep says.
  void Sweep(Segment& segment, int64_t number, int32_t now) {
    if (!options_.expire_after || now <= segment.swept) return;
    const int64_t passed = segment.swept < 0 ? 1 : now - segment.swept;
    segment.swept = now;
    const double share = static_cast<double>(kSweeps * passed) / static_cast<double>(options_.expire_after);
    const int64_t rows = 1 + static_cast<int64_t>(std::min(1.0, share) * static_cast<double>(segment.size));
    for (int64_t i = 0; i < std::min(rows, segment.size); i++) {
      if (segment.sweep >= segment.size) segment.sweep = 0;
      const int64_t slot = segment.sweep++;
      const Entry& found = entry(Row(number, slot));
      if (found.id != kNoId && now - found.used > options_.expire_after) {
        Remove(segment, number, slot);
        segment.free.push_back(slot);
      }
    }
  }

  // Gives a row its initial values, which its id and the seed determine.
  void Begin(int64_t at) {
    const uint64_t key = Mix(options_.seed ^ Mix(static_cast<uint64_t>(entry(at).id)));
    float* values = row(at);
    for (int64_t j = 0; j < options_.dim; j++) values[j] = Draw(key, j);
    for (const float initial : options_.slots) {
      values += options_.dim;
      std::fill(values, values + options_.dim, initial);
    }
  }

  float Draw(uint64_t key, int64_t j) const {
    if (options_.initializer == Initializer::kConstant) return options_.first;
    if (options_.initializer == Initializer::kUniform) {
      return static_cast<float>(options_.first + (options_.second - options_.first) * Uniform(key, j));
    }
    double normal;
    uint64_t place = 2 * static_cast<uint64_t>(j);
    do {
      normal = std::sqrt(-2 * std::log(Uniform(key, place))) * std::cos(2 * kPi * Uniform(key, place + 1));
      place += 2 * static_cast<uint64_t>(options_.dim);
    } while (options_.initializer == Initializer::kTruncated && std::abs(normal) > 2);
    return static_cast<float>(options_.first + options_.second * normal);
  }

  void Append(int64_t at, Rows* found) const {
    found->numbers.push_back(at);
    found->ids.push_back(entry(at).id);
    found->used.push_back(entry(at).used);
    if (entry(at).id == kNoId) {
      found->values.resize(found->values.size() + width_);
    } else {
      found->values.insert(found->values.end(), row(at), row(at) + width_);
    }
  }

  const Options options_;
  const int64_t width_, count_, most_;  // numbers of a row with its slots; segments; the most rows of each
  std::vector<Segment> segments_;
  const Pages values_, entries_;
};

}  // namespace trainer

#endif  // TRAINER_KERNELS_DYNAMIC_TABLE_H_
