#include "libprobe/rewrite/commit.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "libprobe/elf/same_bytes.hpp"
#include "libprobe/rewrite/commit_attributes.hpp"
#include "libprobe/rewrite/commit_inode.hpp"
#include "libprobe/rewrite/commit_place.hpp"
#include "libprobe/rewrite/commit_temp.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{4} << 20;

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
  Result<void> compare_with(int file) const;
  Result<void> write(std::uint64_t offset, ByteView bytes) const;
  Result<void> set_size(std::uint64_t size) const;
  Result<void> flush() const;

 private:
  Result<void> copy_range(std::uint64_t start, std::uint64_t end) const;
  Result<void> compare(int file, std::uint64_t offset, ByteView expected, Bytes& read) const;
  tl::unexpected<Error> error(int number) const {
    return os_error(ErrorCode::io, "cannot write", place_.output_path(), number);
  }

  const CommitPlace& place_;
  const ByteSource& input_;
  int output_;
};

// Shares the blocks where the file system can (btrfs, XFS), else copies what the file has data for:
// a sparse file stays sparse.
Result<void> Writer::copy_input() const {
  const std::uint64_t size = input_.size();
  if (::ioctl(output_, FICLONE, place_.input.get()) == 0) return compare_with(output_);
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

// From the source, from which the plan was made: what is written needs no comparison with it.
Result<void> Writer::copy_range(std::uint64_t start, std::uint64_t end) const {
  for (std::uint64_t from = start; from < end; from += kChunk) {
    const auto length = std::min(kChunk, end - from);
    const auto bytes = input_.slice(FileOffset{from}, Size{length}, "the file");
    if (!bytes) return tl::unexpected(bytes.error());
    if (auto done = write(from, *bytes); !done) return done;
    // The disk begins while the rest is copied and the result is checked; flush() waits.
    static_cast<void>(::sync_file_range(output_, static_cast<off_t>(from),
                                        static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE));
  }
  return {};
}

// Has the file the source's bytes? One that changed after it was mapped does not get through.
Result<void> Writer::compare_with(int file) const {
  Bytes read;  // of one chunk
  for (std::uint64_t from = 0; from < input_.size(); from += kChunk) {
    const auto length = std::min(kChunk, input_.size() - from);
    const auto bytes = input_.slice(FileOffset{from}, Size{length}, "the file");
    if (!bytes) return tl::unexpected(bytes.error());
    if (auto same = compare(file, from, *bytes, read); !same) return same;
  }
  return {};
}

Result<void> Writer::compare(int file, std::uint64_t offset, ByteView expected, Bytes& read) const {
  read.resize(expected.size());
  for (std::size_t done = 0; done < expected.size();) {
    const ssize_t size =
        ::pread(file, read.data() + done, read.size() - done, static_cast<off_t>(offset + done));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return error(size < 0 ? errno : EIO);
    done += static_cast<std::size_t>(size);
  }
  if (!same_bytes(read, expected)) return changed_meanwhile(place_);
  return {};
}

Result<void> Writer::write(std::uint64_t offset, ByteView bytes) const {
  while (!bytes.empty()) {
    const ssize_t size = ::pwrite(output_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EFAULT) return changed_meanwhile(place_);  // the input was cut short
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

  // Without a stamp nothing but its bytes tells that the path leads to what was mapped.
  const Writer input_reader(*place, input, -1);
  if (!options.stamp) {
    if (auto same = input_reader.compare_with(place->input.get()); !same) return same;
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
  if (check) {
    if (auto checked = check(temp->path()); !checked) return checked;
  }
  if (auto flushed = Writer(*place, input, temp->fd()).flush(); !flushed) return flushed;

  if (signals.interrupted())
    return os_error(ErrorCode::io, "did not write", place->output_path(), EINTR);
  if (!leads_to(*place, stamp)) return changed_meanwhile(*place);
  return temp->publish();
}

}  // namespace reprobe
