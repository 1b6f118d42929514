#include "libprobe/rewrite/commit.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "libprobe/facade/check.hpp"
#include "libprobe/facade/no_exceptions.hpp"
#include "libprobe/facade/temporary_file.hpp"
#include "reprobe/reprobe.hpp"

namespace reprobe {
namespace {

// Does the plan leave the end of the file where it is?
bool keeps_end(const Plan& plan, const ByteSource& input) {
  return plan.appended().empty() && plan.kept(input).value == input.size();
}

// What stands behind the file may only move with its end where whoever reads it looks there.
Result<void> check_payload(const Input& input, const Plan& plan) {
  if (!input.payload || input.payload_mode != PayloadMode::automatic || plan.empty()) return {};
  const Payload& payload = *input.payload;
  const bool sealed = payload.kind == PayloadKind::signature;
  if (!sealed && keeps_end(plan, input.file.source())) return {};
  if (is_found_from_end(payload.kind)) return {};
  return fail(ErrorCode::refused, fmt::format("file bytes {:#x}", payload.offset.value),
              fmt::format("payload: {} bytes stand behind the ELF file, {}; {}", payload.size.value,
                          to_string(payload.kind),
                          sealed ? "it would be wrong for the changed file"
                                 : "new bytes have to stand before or behind them"),
              sealed ? "--payload=keep keeps it all the same; sign the file again"
                     : "--payload=keep: they stay the file's last bytes, behind all that the "
                       "headers name; --payload=ignore: they stay at their offset");
}

CommitOptions options_of(const Input& input, const WriteRequest& request) {
  return {.input = input.path,
          .output = request.output,
          .stamp = input.stamp,
          .allow_hard_links = request.break_hardlinks,
          .allow_signature = request.drop_signature,
          .allow_verity = request.drop_verity,
          .preserve_dates = request.preserve_dates,
          .last = input.payload ? input.payload->size : Size{}};
}

// The result, before it takes the file's place.
Result<void> check_result(const Input& input, const Proof& proof, SecondOpinionMode mode,
                          const std::filesystem::path& result, std::vector<Remark>& remarks) {
  const VerifyRequest request{.proof = proof,
                              .ignored_payload = input.payload_mode == PayloadMode::ignore,
                              .second_opinion = mode};
  const auto verdicts = [&]() -> Result<Verdicts> {
    if (!proof.original) return check(input.with_payload(), input.path, result, request);
    const ByteSource& source = proof.original->source();
    const auto bytes = source.slice(FileOffset{0}, Size{source.size()}, "the original");
    if (!bytes) return tl::unexpected(bytes.error());
    const auto copy = TemporaryFile::of(*bytes);
    if (!copy) return tl::unexpected(copy.error());
    return check(*proof.original, copy->path(), result, request);
  }();
  if (!verdicts) return tl::unexpected(verdicts.error());
  std::ranges::copy(verdicts->remarks, std::back_inserter(remarks));
  if (verdicts->findings.empty()) return {};
  const Finding& first = verdicts->findings.front();
  return fail(ErrorCode::internal, "",
              fmt::format("the result did not survive its check, nothing was written: {}: {}",
                          first.rule, first.message),
              "please report this with the file");
}

Result<std::vector<Remark>> commit_plan(const Input& input, const Plan& plan, const Proof& proof,
                                        const WriteRequest& request) {
  std::vector<Remark> remarks;
  if (auto allowed = check_payload(input, plan); !allowed) return tl::unexpected(allowed.error());
  if (plan.empty() && !request.output) return remarks;
  const CommitOptions options = options_of(input, request);
  if (auto allowed = check_committable(options); !allowed) return tl::unexpected(allowed.error());
  if (request.dry_run) return remarks;
  std::function<Result<void>(const std::filesystem::path&)> check;
  // What gives the original back has compared the SHA-256 of what it gives.
  if (proof.options.command != RewriteCommand::undo) {
    check = [&](const std::filesystem::path& result) {
      return check_result(input, proof, request.second_opinion, result, remarks);
    };
  }
  auto done = commit(plan, input.with_payload().source(), options, check);
  if (!done) return tl::unexpected(done.error());
  return remarks;
}

}  // namespace

Result<std::vector<Remark>> commit(const Input& input, const Plan& plan, const Proof& proof,
                                   const WriteRequest& request) {
  return without_exceptions([&] { return commit_plan(input, plan, proof, request); });
}

}  // namespace reprobe
