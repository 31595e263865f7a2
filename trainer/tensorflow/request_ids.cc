// Takes the place of a function of TensorFlow that numbers the requests between tasks.
//
// TensorFlow aborts a request whose number is among the last 100,000 that a task has received. It begins a generator of
// random numbers in each thread, from 32 bits, and a thread in each step. So the numbers are only as many as the seeds,
// and one step in some 40,000 has that of another one.

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <random>

namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

std::atomic<std::uint64_t>& state() {
  static std::atomic<std::uint64_t> found(random_seed());
  // Forks of a process must not have the same numbers.
  static const int is_registered = pthread_atfork(nullptr, nullptr, [] { state() = random_seed(); });
  (void)is_registered;
  return found;
}

}  // namespace

namespace tsl::random {

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): each number once.
std::uint64_t ThreadLocalNew64() {
  std::uint64_t z = state().fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace tsl::random
