#include "tool/measure/uprobe_count.hpp"

#include <fmt/format.h>
#include <link.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

namespace reprobe {
namespace {

constexpr const char* kSelf = "/proc/self/exe";

std::uint64_t word_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

tl::unexpected<Error> denied(const char* call) {
  const int number = errno;
  return tl::unexpected(Error{ErrorCode::io, call, std::generic_category().message(number),
                              "setting a uprobe needs root, or CAP_BPF and CAP_PERFMON"});
}

int bpf(int command, bpf_attr& attributes) {
  return static_cast<int>(syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

int new_map() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = sizeof(std::uint32_t);
  attributes.value_size = sizeof(std::uint64_t);
  attributes.max_entries = 1;
  return bpf(BPF_MAP_CREATE, attributes);
}

// map[0] += 1: what bpftrace's count() does, for one processor.
int new_program(int map) {
  const auto code = std::to_array<bpf_insn>({
      {BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -4, 0},  // the key
      {BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_2, BPF_REG_10, 0, 0},
      {BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -4},
      {BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map},
      {0, 0, 0, 0, 0},
      {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem},
      {BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 3, 0},
      {BPF_LDX | BPF_MEM | BPF_DW, BPF_REG_1, BPF_REG_0, 0, 0},
      {BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_1, 0, 0, 1},
      {BPF_STX | BPF_MEM | BPF_DW, BPF_REG_0, BPF_REG_1, 0, 0},
      {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0},
      {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
  });
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_KPROBE;
  attributes.insn_cnt = code.size();
  attributes.insns = word_of(code.data());
  attributes.license = word_of("Apache-2.0");
  return bpf(BPF_PROG_LOAD, attributes);
}

// Where the address is in the file that this program was started from.
std::optional<std::uint64_t> offset_of(const void* address) {
  struct Search {
    std::uint64_t address;
    std::optional<std::uint64_t> offset;
  } search{word_of(address), std::nullopt};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* context) {
        auto& found = *static_cast<Search*>(context);
        for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const std::uint64_t start = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD && found.address >= start &&
              found.address - start < segment.p_filesz)
            found.offset = found.address - start + segment.p_offset;
        }
        return 1;  // the first object is the program
      },
      &search);
  return search.offset;
}

int new_event(std::uint64_t offset) {
  unsigned type = 0;
  std::ifstream file("/sys/bus/event_source/devices/uprobe/type");
  if (!(file >> type)) {
    errno = ENOENT;
    return -1;
  }
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = type;
  attributes.uprobe_path = word_of(kSelf);
  attributes.probe_offset = offset;
  return static_cast<int>(
      syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

}  // namespace

Result<UprobeCount> UprobeCount::attach(const void* site) {
  UprobeCount out;
  const auto offset = offset_of(site);
  if (!offset) return fail(ErrorCode::internal, kSelf, "the site is in no segment of the program");
  out.map_ = new_map();
  if (out.map_ < 0) return denied("bpf(BPF_MAP_CREATE)");
  out.program_ = new_program(out.map_);
  if (out.program_ < 0) return denied("bpf(BPF_PROG_LOAD)");
  out.event_ = new_event(*offset);
  if (out.event_ < 0) return denied("perf_event_open");
  if (ioctl(out.event_, PERF_EVENT_IOC_SET_BPF, out.program_) != 0 ||
      ioctl(out.event_, PERF_EVENT_IOC_ENABLE, 0) != 0)
    return denied("ioctl(PERF_EVENT_IOC_SET_BPF)");
  return out;
}

UprobeCount::UprobeCount(UprobeCount&& other) noexcept
    : map_(std::exchange(other.map_, -1)),
      program_(std::exchange(other.program_, -1)),
      event_(std::exchange(other.event_, -1)) {}

UprobeCount::~UprobeCount() {
  for (const int fd : {event_, program_, map_}) {
    if (fd >= 0) close(fd);
  }
}

Result<std::uint64_t> UprobeCount::hits() const {
  std::uint64_t value = 0;
  const std::uint32_t key = 0;
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_);
  attributes.key = word_of(&key);
  attributes.value = word_of(&value);
  if (bpf(BPF_MAP_LOOKUP_ELEM, attributes) != 0) return denied("bpf(BPF_MAP_LOOKUP_ELEM)");
  return value;
}

}  // namespace reprobe
