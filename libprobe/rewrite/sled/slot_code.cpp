#include "libprobe/rewrite/sled/slot_code.hpp"

#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {
namespace {

constexpr std::int64_t kWord = 8;
constexpr std::uint64_t kImmediate8 = 1;

// Instructions one behind the other, each of which may refer to another address.
class SlotCode {
 public:
  explicit SlotCode(VirtAddr at) : at_(at) {}

  void add(std::initializer_list<std::uint8_t> codes) {
    for (const std::uint8_t code : codes) bytes_.push_back(std::byte{code});
  }
  // `behind`: bytes of the instruction behind the field, from whose end the field counts.
  void add(std::initializer_list<std::uint8_t> codes, VirtAddr to, std::uint64_t behind = 0) {
    add(codes);
    const auto field = encode_relative(VirtAddr{at_.value + bytes_.size() + 4 + behind}, to);
    if (!field) {
      error_ = field.error();
      return;
    }
    bytes_.insert(bytes_.end(), field->begin(), field->end());
  }
  [[nodiscard]] Result<Bytes> finish() {
    if (error_) return tl::unexpected(*error_);
    return std::move(bytes_);
  }

  // push argument(%rip); call *entry(%rip); lea 136(%rsp),%rsp
  void call_slot(VirtAddr slot) {
    add({0xff, 0x35}, VirtAddr{slot.value + kSlotArgument});
    add({0xff, 0x15}, VirtAddr{slot.value + kSlotEntry});
    add({0x48, 0x8d, 0xa4, 0x24, 0x88, 0x00, 0x00, 0x00});
  }

 private:
  VirtAddr at_;
  Bytes bytes_;
  std::optional<Error> error_;
};

}  // namespace

const std::vector<SlotPart>& slot_test_parts(bool keeps_flags) {
  // cmpl, jne
  static const std::vector<SlotPart> kPlain{{13, 0}};
  // lea; push; mov, jrcxz; pop; push; call, lea; jmp; pop; lea
  static const std::vector<SlotPart> kKept{{5, 0},
                                           {1, kRedZone},
                                           {8, kRedZone + kWord},
                                           {1, kRedZone + kWord},
                                           {6, kRedZone},
                                           {14, kRedZone + kWord},
                                           {2, 0},
                                           {1, kRedZone + kWord},
                                           {8, kRedZone}};
  return keeps_flags ? kKept : kPlain;
}

const std::vector<SlotPart>& slot_call_parts(bool keeps_flags) {
  // lea; push; call, lea; jmp
  static const std::vector<SlotPart> kCall{{5, 0}, {6, kRedZone}, {14, kRedZone + kWord}, {5, 0}};
  static const std::vector<SlotPart> kNone;
  return keeps_flags ? kNone : kCall;
}

Result<Bytes> slot_test(VirtAddr at, VirtAddr slot, bool keeps_flags, VirtAddr call) {
  SlotCode code(at);
  if (!keeps_flags) {
    code.add({0x83, 0x3d}, slot, kImmediate8);  // cmpl $0,slot(%rip)
    code.add({0x00});
    code.add({0x0f, 0x85}, call);  // jne call
    return code.finish();
  }
  code.add({0x48, 0x8d, 0x64, 0x24, 0x80});  // lea -128(%rsp),%rsp
  code.add({0x51});                          // push %rcx
  code.add({0x8b, 0x0d}, slot);              // mov slot(%rip),%ecx
  code.add({0xe3, 0x17});                    // jrcxz 1f
  code.add({0x59});                          // pop %rcx
  code.call_slot(slot);
  code.add({0xeb, 0x09});                                      // jmp 2f
  code.add({0x59});                                            // 1: pop %rcx
  code.add({0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00});  // lea 128(%rsp),%rsp; 2:
  return code.finish();
}

Result<Bytes> slot_call(VirtAddr at, VirtAddr slot, bool keeps_flags, VirtAddr back) {
  SlotCode code(at);
  if (keeps_flags) return code.finish();
  code.add({0x48, 0x8d, 0x64, 0x24, 0x80});  // lea -128(%rsp),%rsp
  code.call_slot(slot);
  code.add({0xe9}, back);  // jmp back
  return code.finish();
}

std::uint64_t size_of(const std::vector<SlotPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const SlotPart& part) { return sum + part.size; });
}

}  // namespace reprobe
