// The formulas of optimizers, which update rows of a table with their slots in one pass over memory.

#ifndef TRAINER_KERNELS_ROW_RULES_H_
#define TRAINER_KERNELS_ROW_RULES_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace trainer {

// How far ahead of the present row memory is fetched.
constexpr int64_t kAhead = 8;
constexpr int kMaxSlots = 3;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=haswell", "default")))
#else
#define VECTORISED
#endif

// Some rows to update: those with the numbers rows[begin] to rows[end].
struct Part {
  int64_t begin, end, dim;
  const int64_t* rows;
  const float* gradients;  // [n, dim]
  const int32_t* places;   // of the gradient of each of these rows; null if they are in the same order
  float* values;           // of row 0, in a table whose rows are `stride` numbers apart
  float* slots[kMaxSlots]; // of row 0, likewise
  int64_t stride;
  // The learning rate, the share by which values decay, the largest absolute value of a gradient, and what a rule has.
  const float* settings;
};

// Defines the function that updates rows by a rule: a statement for one number `v` of a row, with gradient `g`, learning
// rate `rate`, the numbers `a`, `b` and `c` of its slots, and the settings `s` of the rule.
#define RULE(NAME, SLOTS, STATEMENT)                                                           \
  VECTORISED static void NAME(const Part& p) {                                                        \
    const float rate = p.settings[0], keep = 1 - p.settings[1], limit = p.settings[2];         \
    const float* const s = p.settings + 3;                                                     \
    (void)s;                                                                                   \
    for (int64_t i = p.begin; i < p.end; i++) {                                                \
      if (i + kAhead < p.end) {                                                                \
        if (p.places) {                                                                        \
          const float* after = p.gradients + p.places[i + kAhead] * p.dim;                     \
          for (int64_t j = 0; j < p.dim; j += 16) __builtin_prefetch(after + j);               \
        }                                                                                      \
        const int64_t next = p.rows[i + kAhead] * p.stride;                                    \
        for (int64_t j = 0; j < p.dim; j += 16) {                                              \
          __builtin_prefetch(p.values + next + j, 1);                                          \
          for (int k = 0; k < SLOTS; k++) __builtin_prefetch(p.slots[k] + next + j, 1);        \
        }                                                                                      \
      }                                                                                        \
      const int64_t at = p.rows[i] * p.stride;                                                 \
      float* __restrict values = p.values + at;                                                \
      float* __restrict first = p.slots[0] + at;                                               \
      float* __restrict second = p.slots[1] + at;                                              \
      float* __restrict third = p.slots[2] + at;                                               \
      const float* __restrict gradient = p.gradients + (p.places ? p.places[i] : i) * p.dim;   \
      for (int64_t j = 0; j < p.dim; j++) {                                                    \
        float g = gradient[j], v = values[j] * keep;                                           \
        g = g > limit ? limit : g < -limit ? -limit : g;                                       \
        float a = SLOTS > 0 ? first[j] : 0, b = SLOTS > 1 ? second[j] : 0, c = SLOTS > 2 ? third[j] : 0; \
        STATEMENT                                                                              \
        values[j] = v;                                                                         \
        if (SLOTS > 0) first[j] = a;                                                           \
        if (SLOTS > 1) second[j] = b;                                                          \
        if (SLOTS > 2) third[j] = c;                                                           \
      }                                                                                        \
    }                                                                                          \
  }

// As Keras's optimizers of these names compute them.
RULE(Sgd, 0, { v -= rate * g; })
RULE(Momentum, 1, { a = a * s[0] - g * rate; v += a; })
RULE(Nesterov, 1, { a = a * s[0] - g * rate; v += a * s[0] - g * rate; })
RULE(Adagrad, 1, { a += g * g; v -= rate * g / std::sqrt(a + s[0]); })
RULE(RmsProp, 1, { a = s[0] * a + (1 - s[0]) * (g * g); v -= rate * g / std::sqrt(a + s[1]); })
RULE(Adam, 2, { a += (g - a) * s[0]; b += (g * g - b) * s[1]; v -= a * rate / (std::sqrt(b) + s[2]); })
RULE(AmsGrad, 3, {
  a += (g - a) * s[0];
  b += (g * g - b) * s[1];
  c = b > c ? b : c;
  v -= a * rate / (std::sqrt(c) + s[2]);
})
// Slots: the sum of the squares, and the linear term.
RULE(Ftrl, 2, {
  const float n = a + g * g;
  b += g + s[0] * v - (std::sqrt(n) - std::sqrt(a)) / rate * v;
  const float clipped = b > s[1] ? s[1] : b < -s[1] ? -s[1] : b;
  v = (clipped - b) / (std::sqrt(n) / rate + s[2]);
  a = n;
})

struct Rule {
  void (*update)(const Part&);
  int slots, settings;
};

inline const std::unordered_map<std::string, Rule>& Rules() {
  static const auto* rules = new std::unordered_map<std::string, Rule>{
      {"sgd", {Sgd, 0, 3}},         {"momentum", {Momentum, 1, 4}}, {"nesterov", {Nesterov, 1, 4}},
      {"adagrad", {Adagrad, 1, 4}}, {"rmsprop", {RmsProp, 1, 5}},   {"adam", {Adam, 2, 6}},
      {"amsgrad", {AmsGrad, 3, 6}}, {"ftrl", {Ftrl, 2, 6}},
  };
  return *rules;
}

#undef RULE

}  // namespace trainer

#endif  // TRAINER_KERNELS_ROW_RULES_H_
