#include "libprobe/rewrite/sled/displace.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace reprobe {
namespace {

// Relative branches with an 8-bit field become e9 and 0f 8x (Intel SDM volume 2, JMP and Jcc).
constexpr std::size_t kNearConditional = 6;
constexpr std::uint8_t kJump = 0xe9, kEscape = 0x0f;
constexpr std::uint8_t kShortConditional = 0x70, kNearConditionalOpcode = 0x80;

bool is_short_branch(const CodeInstruction& instruction) {
  const bool branch =
      instruction.kind == InstructionKind::jump || instruction.kind == InstructionKind::conditional;
  return branch && instruction.branch_field && instruction.branch_field->width == 1;
}

Bytes widen(const CodeInstruction& instruction, ByteView bytes) {
  if (instruction.kind == InstructionKind::jump) return {std::byte{kJump}};
  const auto condition = std::to_integer<std::uint8_t>(bytes[0]) - kShortConditional;
  return {std::byte{kEscape},
          std::byte{static_cast<std::uint8_t>(kNearConditionalOpcode + condition)}};
}

}  // namespace

std::optional<std::string> why_not_displaced(const CodeInstruction& instruction) {
  if (instruction.opaque) return "an instruction that is not understood";
  switch (instruction.kind) {
    case InstructionKind::call:
    case InstructionKind::indirect_call:
      return "a call";  // its return address would lie in the stub
    case InstructionKind::loop:
      return "a branch without a long form";
    case InstructionKind::transaction:
      return "a transaction's start";
    case InstructionKind::endbr:
      return "an endbr64";  // an indirect branch must find it there
    case InstructionKind::trap:
      return "a trap";  // its address tells a handler which one it is
    default:
      break;
  }
  if (instruction.repeated_string) return "a repeated string operation";
  if (instruction.branch_field && instruction.branch_field->width == 1 &&
      instruction.branch_field->at != 1) {
    return "a short branch with a prefix";
  }
  return std::nullopt;
}

Size displaced_size(const CodeInstruction& instruction) {
  if (!is_short_branch(instruction)) return instruction.size;
  return Size{instruction.kind == InstructionKind::jump ? kJumpSize : kNearConditional};
}

Result<Bytes> encode_relative(VirtAddr end, VirtAddr to) {
  const auto distance = static_cast<std::int64_t>(to.value - end.value);
  if (distance < INT32_MIN || distance > INT32_MAX) {
    return fail(ErrorCode::refused, "",
                fmt::format("{:#x} is more than 2 GiB from {:#x}", to.value, end.value));
  }
  Bytes bytes(4);
  store_uint(bytes, 0, 4, std::endian::little, static_cast<std::uint32_t>(distance));
  return bytes;
}

Result<Bytes> encode_jump(VirtAddr from, VirtAddr to) {
  const auto field = encode_relative(VirtAddr{from.value + kJumpSize}, to);
  if (!field) return tl::unexpected(field.error());
  Bytes bytes{std::byte{kJump}};
  bytes.insert(bytes.end(), field->begin(), field->end());
  return bytes;
}

Result<Bytes> displace(const CodeInstruction& instruction, ByteView bytes, VirtAddr to) {
  if (const auto why = why_not_displaced(instruction)) {
    return fail(ErrorCode::refused, "", *why);
  }
  if (bytes.size() != instruction.size.value) {
    return fail(ErrorCode::internal, "", "an instruction without its bytes");
  }
  const VirtAddr end{to.value + displaced_size(instruction).value};
  Bytes moved(bytes.begin(), bytes.end());
  if (is_short_branch(instruction)) {
    const auto field = encode_relative(end, *instruction.target);
    if (!field) return tl::unexpected(field.error());
    moved = widen(instruction, bytes);
    moved.insert(moved.end(), field->begin(), field->end());
    return moved;
  }
  const auto rewrite = [&](const std::optional<EncodedField>& place,
                           const std::optional<VirtAddr>& target) -> Result<void> {
    if (!place) return {};
    if (place->width != 4 || !target || place->at + 4 > moved.size()) {
      return fail(ErrorCode::refused, "", "a relative operand that is not understood");
    }
    const auto field = encode_relative(end, *target);
    if (!field) return tl::unexpected(field.error());
    std::ranges::copy(*field, moved.begin() + static_cast<std::ptrdiff_t>(place->at));
    return {};
  };
  if (auto done = rewrite(instruction.branch_field, instruction.target); !done) {
    return tl::unexpected(done.error());
  }
  if (auto done = rewrite(instruction.rip_field, instruction.rip_target); !done) {
    return tl::unexpected(done.error());
  }
  return moved;
}

}  // namespace reprobe
