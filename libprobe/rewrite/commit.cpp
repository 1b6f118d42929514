#include "libprobe/rewrite/commit.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "libprobe/rewrite/commit_attributes.hpp"
#include "libprobe/rewrite/commit_inode.hpp"
#include "libprobe/rewrite/commit_place.hpp"
#include "libprobe/rewrite/commit_temp.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxKernelCopy = std::uint64_t{1} << 30;  // the result is a ssize_t

tl::unexpected<Error> changed_meanwhile(const CommitPlace& place) {
  return fail(ErrorCode::refused, "",
              place.path + " was changed by another program while it was being rewritten",
              "run the command again");
}

// Fills a temporary file with the output. Offsets fit off_t: write_output() checks the size.
class Writer {
 public:
  Writer(const CommitPlace& place, const ByteSource& input, int output)
      : place_(place), input_(input), output_(output) {}

  Result<void> copy_input() const;
  Result<void> write(std::uint64_t offset, ByteView bytes) const;
  Result<void> set_size(std::uint64_t size) const;
  Result<void> flush() const;

 private:
  Result<void> copy_range(std::uint64_t start, std::uint64_t end) const;
  std::uint64_t copy_in_kernel(std::uint64_t start, std::uint64_t end) const;
  Result<void> compare(std::uint64_t offset, ByteView expected) const;
  tl::unexpected<Error> error(int number) const {
    return os_error(ErrorCode::io, "cannot write", place_.output_path(), number);
  }

  const CommitPlace& place_;
  const ByteSource& input_;
  int output_;
};

// Copies what the file has data for: a sparse file stays sparse.
Result<void> Writer::copy_input() const {
  const std::uint64_t size = input_.size();
  if (auto sized = set_size(size); !sized) return sized;
  for (std::uint64_t at = 0; at < size;) {
    const off_t data = ::lseek(place_.input.get(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return {};  // only a hole is left
    const off_t hole = data < 0 ? data : ::lseek(place_.input.get(), data, SEEK_HOLE);
    // A file system that does not tell has no holes.
    const std::uint64_t start = hole < 0 ? at : static_cast<std::uint64_t>(data);
    const std::uint64_t end = hole < 0 ? size : std::min(size, static_cast<std::uint64_t>(hole));
    if (start >= end) return {};
    if (auto copied = copy_range(start, end); !copied) return copied;
    at = end;
  }
  return {};
}

// In the kernel where it can (which shares the blocks on btrfs and XFS), else from the source.
// Either way the result is compared with the source, from which the plan was made: a file that
// changed after it was mapped, or a bad copy, does not get through.
Result<void> Writer::copy_range(std::uint64_t start, std::uint64_t end) const {
  const std::uint64_t copied_to = copy_in_kernel(start, end);
  for (std::uint64_t from = start; from < end; from += kChunk) {
    const auto length = static_cast<std::size_t>(std::min(kChunk, end - from));
    const auto bytes = input_.slice(FileOffset{from}, Size{length}, "the file");
    if (!bytes) return tl::unexpected(bytes.error());
    const auto copied = static_cast<std::size_t>(std::clamp(copied_to, from, from + length) - from);
    if (auto same = compare(from, bytes->first(copied)); !same) return same;
    if (auto done = write(from + copied, bytes->subspan(copied)); !done) return done;
  }
  return {};
}

// Gives the end of what was copied; an error is left to the writing that follows to report.
std::uint64_t Writer::copy_in_kernel(std::uint64_t start, std::uint64_t end) const {
  auto from = static_cast<off_t>(start);
  auto to = from;
  while (static_cast<std::uint64_t>(to) < end) {
    const auto left =
        static_cast<std::size_t>(std::min(kMaxKernelCopy, end - static_cast<std::uint64_t>(to)));
    const ssize_t copied = ::copy_file_range(place_.input.get(), &from, output_, &to, left, 0);
    if (copied <= 0) break;
  }
  return static_cast<std::uint64_t>(to);
}

Result<void> Writer::compare(std::uint64_t offset, ByteView expected) const {
  Bytes written(expected.size());
  for (std::size_t done = 0; done < written.size();) {
    const ssize_t size = ::pread(output_, written.data() + done, written.size() - done,
                                 static_cast<off_t>(offset + done));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return error(size < 0 ? errno : EIO);
    done += static_cast<std::size_t>(size);
  }
  if (!std::ranges::equal(written, expected)) return changed_meanwhile(place_);
  return {};
}

Result<void> Writer::write(std::uint64_t offset, ByteView bytes) const {
  while (!bytes.empty()) {
    const ssize_t size = ::pwrite(output_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return error(size < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(size));
    offset += static_cast<std::uint64_t>(size);
  }
  return {};
}

Result<void> Writer::set_size(std::uint64_t size) const {
  int result;
  do result = ::ftruncate(output_, static_cast<off_t>(size));
  while (result != 0 && errno == EINTR);
  if (result != 0) return error(errno);
  return {};
}

Result<void> Writer::flush() const {
  // EINVAL, EROFS: a file system without it. Delayed allocation and quotas are reported here.
  if (::fsync(output_) != 0 && errno != EINVAL && errno != EROFS) return error(errno);
  return {};
}

// `last`: bytes at the end of the input that follow whatever the plan makes of those before.
Result<void> write_output(const Plan& plan, const CommitPlace& place, const ByteSource& input,
                          Size last, int output) {
  const auto size = checked_add(input.size(), plan.appended().size());
  const Writer writer(place, input, output);
  if (!size || *size > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return os_error(ErrorCode::io, "cannot write", place.output_path(), EFBIG);
  }
  if (auto copied = writer.copy_input(); !copied) return copied;
  for (const Edit& edit : plan.edits()) {
    if (auto checked = check_edit(edit, input); !checked) return checked;
    if (auto written = writer.write(edit.offset.value, edit.after); !written) return written;
  }
  const std::uint64_t before_last = input.size() - last.value;
  const std::uint64_t kept = std::min(plan.kept(input).value, before_last);
  if (kept == before_last && plan.appended().empty()) return {};
  const auto moved = input.slice(FileOffset{before_last}, last, "the data behind the file");
  if (!moved) return tl::unexpected(moved.error());
  const std::uint64_t end = kept + plan.appended().size();
  if (auto written = writer.write(kept, plan.appended()); !written) return written;
  if (auto written = writer.write(end, *moved); !written) return written;
  return writer.set_size(end + last.value);
}

}  // namespace

Result<void> check_committable(const CommitOptions& options) {
  const auto place = find_commit_place(options);
  if (!place) return tl::unexpected(place.error());
  return refuse_losses(*place, options);
}

Result<void> commit(const Plan& plan, const ByteSource& input, const CommitOptions& options,
                    const std::function<Result<void>(const std::filesystem::path&)>& check) {
  const auto place = find_commit_place(options);
  if (!place) return tl::unexpected(place.error());
  if (plan.empty() && place->in_place) return {};
  if (auto safe = refuse_losses(*place, options); !safe) return safe;
  // From here to the rename the input must be the file that the plan was made from.
  const FileStamp stamp = options.stamp.value_or(stamp_of(place->status));
  if (options.last > Size{input.size()}) {
    return fail(ErrorCode::internal, "", "more bytes are to stay the last than there are");
  }
  if (stamp_of(place->status) != stamp || stamp.size.value != input.size()) {
    return changed_meanwhile(*place);
  }

  remove_stale_temporaries(*place);
  HeldSignals signals;  // outlives the temporary file: they come when it is gone
  auto temp = TempFile::create(*place);
  if (!temp) return tl::unexpected(temp.error());
  if (temp->kind() == TempFile::Kind::unnamed) signals.allow_interruption();

  if (place->in_place) {
    if (auto carried = carry_inode(place->input.get(), temp->fd()); !carried) return carried;
  }
  if (auto written = write_output(plan, *place, input, options.last, temp->fd()); !written)
    return written;
  const AttributePolicy policy{.must_keep = place->in_place,
                               .preserve_dates = options.preserve_dates};
  if (auto carried = carry_attributes(place->input.get(), place->status, temp->fd(), policy);
      !carried) {
    return carried;
  }
  if (auto flushed = Writer(*place, input, temp->fd()).flush(); !flushed) return flushed;
  if (check) {
    if (auto checked = check(temp->path()); !checked) return checked;
  }

  if (signals.interrupted())
    return os_error(ErrorCode::io, "did not write", place->output_path(), EINTR);
  if (!leads_to(*place, stamp)) return changed_meanwhile(*place);
  return temp->publish();
}

}  // namespace reprobe
