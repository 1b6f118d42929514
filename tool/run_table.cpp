#include "tool/run_table.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

namespace reprobe {

RunTable::Instant RunTable::instant() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  Instant instant;
  instant.nanoseconds = static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
#if defined(__x86_64__)
  instant.counter = __builtin_ia32_rdtsc();
#endif
  return instant;
}

Result<void> RunTable::open() {
  std::error_code error;
  path_ = (std::filesystem::temp_directory_path(error) / "reprobe-table-XXXXXX").string();
  const auto failed = [&] { return fail(ErrorCode::io, path_, std::strerror(errno)); };
  const int fd = mkstemp(path_.data());
  if (fd < 0) return failed();
  const bool sized = ftruncate(fd, sizeof(reprobe_table)) == 0;
  void* at = sized ? mmap(nullptr, sizeof(reprobe_table), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_NORESERVE, fd, 0)
                   : MAP_FAILED;
  close(fd);
  if (at == MAP_FAILED) {
    unlink(path_.c_str());
    return failed();
  }
  table_ = static_cast<reprobe_table*>(at);
  table_->magic = REPROBE_TABLE_MAGIC;
  start_ = instant();
  return {};
}

RunTable::~RunTable() {
  if (table_ == nullptr) return;
  munmap(table_, sizeof(reprobe_table));
  unlink(path_.c_str());
}

bool RunTable::has_agents() const {
  return __atomic_load_n(&table_->attached, __ATOMIC_ACQUIRE) != 0;
}

std::uint32_t RunTable::entries() const {
  return std::min<std::uint32_t>(__atomic_load_n(&table_->used, __ATOMIC_ACQUIRE),
                                 REPROBE_TABLE_ENTRIES);
}

std::string_view RunTable::name(std::uint32_t entry) const {
  const reprobe_table_entry& found = table_->entry[entry];
  return {found.name, strnlen(found.name, sizeof found.name)};
}

std::map<std::string, std::uint64_t> RunTable::counts() const {
  std::map<std::string, std::uint64_t> counts;
  for (std::uint32_t i = 0; i < entries(); ++i) {
    if (__atomic_load_n(&table_->entry[i].ready, __ATOMIC_ACQUIRE) == 0) continue;
    std::uint64_t& sum = counts[std::string(name(i))];
    for (const auto& row : table_->hits) sum += __atomic_load_n(&row[i], __ATOMIC_RELAXED);
  }
  return counts;
}

std::uint64_t RunTable::lost() const {
  const std::uint64_t all = __atomic_load_n(&table_->events, __ATOMIC_ACQUIRE);
  return all - std::min<std::uint64_t>(all, REPROBE_TABLE_EVENTS);
}

std::vector<TracedEvent> RunTable::events() {
  // The counter's rate is taken over the whole run.
  const Instant end = instant();
  const auto ticks = static_cast<double>(end.counter - start_.counter);
  const double rate = ticks > 0 ? (end.nanoseconds - start_.nanoseconds) / ticks : 0;
  const std::uint64_t all = std::min<std::uint64_t>(
      __atomic_load_n(&table_->events, __ATOMIC_ACQUIRE), REPROBE_TABLE_EVENTS);
  std::vector<TracedEvent> events;
  for (std::uint64_t i = 0; i < all; ++i) {
    const reprobe_table_event& event = table_->event[i];
    if (__atomic_load_n(&event.ready, __ATOMIC_ACQUIRE) == 0 || event.entry >= entries()) continue;
    TracedEvent traced;
    traced.nanoseconds =
        static_cast<double>(static_cast<std::int64_t>(event.time - start_.counter)) * rate;
    traced.probe = name(event.entry);
    traced.process = event.process;
    traced.thread = event.thread;
    traced.is_signed = event.is_signed;
    const unsigned count = std::min<unsigned>(event.arguments, REPROBE_TABLE_ARGUMENTS);
    for (unsigned n = 0; n < count; ++n)
      traced.arguments.push_back(static_cast<std::int64_t>(event.argument[n]));
    events.push_back(std::move(traced));
  }
  std::ranges::stable_sort(events, {}, &TracedEvent::nanoseconds);
  return events;
}

}  // namespace reprobe
