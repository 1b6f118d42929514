// A table of text: columns as wide as their widest cell, two blanks before each.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace reprobe {

// Characters, not bytes: names may be UTF-8.
[[nodiscard]] std::size_t text_width(std::string_view cell);

using TableRow = std::vector<std::string>;  // as many cells as there are columns

// To stdout. `shown(row, column)` gives the cell as it is printed, of the same width on a terminal.
void print_table(const TableRow& columns, const std::vector<TableRow>& rows,
                 const std::function<std::string(std::size_t row, std::size_t column)>& shown);

}  // namespace reprobe
