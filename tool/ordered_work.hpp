// Work on a row of items by several threads, whose results come in the order of the items.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace reprobe {

// Each item has a row of results, of any length. `next` gives the items (called under a lock, in
// order), `work` makes the results of one in any thread, `take` gets them all in order in the calling
// thread. Few results wait at a time: a thread that is far ahead stops until its item is the first.
template <typename Item, typename Result>
class OrderedWork {
 public:
  using Emit = std::function<void(Result)>;

  static void run(std::size_t threads, const std::function<std::optional<Item>()>& next,
                  const std::function<void(const Item&, const Emit&)>& work, const Emit& take) {
    if (threads <= 1) {
      while (auto item = next()) work(*item, take);
      return;
    }
    OrderedWork all(next, work);
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < threads; ++i) workers.emplace_back([&] { all.work_on(); });
    while (auto result = all.wait()) take(std::move(*result));
  }

 private:
  static constexpr std::size_t kMostWaiting = 8;   // results of one item
  static constexpr std::size_t kMostRows = 256;     // items that are begun or done

  struct Row {
    std::deque<Result> results;
    bool done{};
  };

  OrderedWork(const std::function<std::optional<Item>()>& next,
              const std::function<void(const Item&, const Emit&)>& work)
      : next_(next), work_(work) {}

  void work_on() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return rows_.size() < kMostRows || ended_; });
      if (ended_) return;
      auto item = next_();
      if (!item) {
        ended_ = true;
        changed_.notify_all();
        return;
      }
      Row& row = rows_.emplace_back();  // a deque: the others stay where they are
      lock.unlock();
      work_(*item, [&](Result result) {
        std::unique_lock inner(mutex_);
        changed_.wait(inner, [&] {
          return row.results.size() < kMostWaiting || &row == &rows_.front();
        });
        row.results.push_back(std::move(result));
        if (&row == &rows_.front()) changed_.notify_all();
      });
      lock.lock();
      row.done = true;
      if (&row == &rows_.front()) changed_.notify_all();
    }
  }

  // The next result in order, once it is there.
  std::optional<Result> wait() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        return rows_.empty() ? ended_ : !rows_.front().results.empty() || rows_.front().done;
      });
      if (rows_.empty()) return std::nullopt;
      if (!rows_.front().results.empty()) {
        Result result = std::move(rows_.front().results.front());
        rows_.front().results.pop_front();
        return result;
      }
      rows_.pop_front();
      changed_.notify_all();
    }
  }

  const std::function<std::optional<Item>()>& next_;
  const std::function<void(const Item&, const Emit&)>& work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Row> rows_;
  bool ended_{};
};

}  // namespace reprobe
