/* The arguments of a note, taken apart once, when the probe is found. The grammar is that of
 * sys/sdt.h and of GCC's and clang's operands, AT&T syntax, x86-64: "-4@%edi 8@16(%rsp)". */
#include <string.h>

#include "internal.h"

/* The four spellings of each register, by its number in instructions. */
static const char* const kNames[16][4] = {
    {"rax", "eax", "ax", "al"},      {"rcx", "ecx", "cx", "cl"},
    {"rdx", "edx", "dx", "dl"},      {"rbx", "ebx", "bx", "bl"},
    {"rsp", "esp", "sp", "spl"},     {"rbp", "ebp", "bp", "bpl"},
    {"rsi", "esi", "si", "sil"},     {"rdi", "edi", "di", "dil"},
    {"r8", "r8d", "r8w", "r8b"},     {"r9", "r9d", "r9w", "r9b"},
    {"r10", "r10d", "r10w", "r10b"}, {"r11", "r11d", "r11w", "r11b"},
    {"r12", "r12d", "r12w", "r12b"}, {"r13", "r13d", "r13w", "r13b"},
    {"r14", "r14d", "r14w", "r14b"}, {"r15", "r15d", "r15w", "r15b"},
};
static const char* const kHigh[4] = {"ah", "ch", "dh", "bh"};

struct text {
  const char* at;
  const char* end;
};

static bool take(struct text* text, char c) {
  if (text->at == text->end || *text->at != c) return false;
  ++text->at;
  return true;
}

/* [+-] decimal, or 0x and hexadecimal. */
static bool take_number(struct text* text, int64_t* number) {
  struct text t = *text;
  const bool minus = take(&t, '-');
  if (!minus) take(&t, '+');
  unsigned base = 10;
  if (t.end - t.at > 2 && t.at[0] == '0' && (t.at[1] == 'x' || t.at[1] == 'X')) {
    base = 16;
    t.at += 2;
  }
  uint64_t value = 0;
  const char* first = t.at;
  for (; t.at != t.end; ++t.at) {
    const unsigned char c = (unsigned char)*t.at;
    unsigned digit;
    if (c >= '0' && c <= '9') {
      digit = c - (unsigned)'0';
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = (c | 0x20U) - 'a' + 10;
    } else {
      break;
    }
    if (digit >= base) break;
    value = value * base + digit;
  }
  if (t.at == first) return false;
  *number = (int64_t)(minus ? 0 - value : value);
  *text = t;
  return true;
}

/* %name; gives the number of the register, or -1. `width`: its bytes, 1 with `high` for %ah. */
static int take_register(struct text* text, unsigned* width, bool* high) {
  struct text t = *text;
  if (!take(&t, '%')) return -1;
  const char* first = t.at;
  while (t.at != t.end && ((*t.at >= 'a' && *t.at <= 'z') || (*t.at >= '0' && *t.at <= '9')))
    ++t.at;
  const size_t length = (size_t)(t.at - first);
  for (int number = 0; number < 16; ++number) {
    for (unsigned form = 0; form < 4; ++form) {
      if (strlen(kNames[number][form]) != length ||
          memcmp(kNames[number][form], first, length) != 0)
        continue;
      *width = 8U >> form;
      *high = false;
      *text = t;
      return number;
    }
  }
  for (int number = 0; number < 4; ++number) {
    if (length != 2 || memcmp(kHigh[number], first, 2) != 0) continue;
    *width = 1;
    *high = true;
    *text = t;
    return number;
  }
  return -1;
}

/* %xmm0 to %xmm15, and %ymm, %zmm of which the low bytes are meant; or -1. */
static int take_vector(struct text* text) {
  struct text t = *text;
  if (!take(&t, '%') || t.end - t.at < 4 || t.at[1] != 'm' || t.at[2] != 'm' ||
      (t.at[0] != 'x' && t.at[0] != 'y' && t.at[0] != 'z'))
    return -1;
  t.at += 3;
  int64_t number;
  if (!take_number(&t, &number) || number < 0 || number > 15) return -1;
  *text = t;
  return (int)number;
}

/* disp(base,index,scale), each part but one missing, or %fs: and that. Of 64-bit registers. */
static bool take_memory(struct text* text, struct rt_operand* operand) {
  struct text t = *text;
  unsigned width = 8;
  bool high = false;
  if (t.end - t.at > 4 && memcmp(t.at, "%fs:", 4) == 0) {
    operand->thread = true;
    t.at += 4;
  }
  const bool displaced = take_number(&t, &operand->number);
  operand->reg = operand->index = -1;
  operand->scale = 1;
  if (take(&t, '(')) {
    const int base = take_register(&t, &width, &high);
    if (width != 8 || high) return false;
    operand->reg = (int8_t)base;
    if (take(&t, ',')) {
      const int index = take_register(&t, &width, &high);
      if (index < 0 || width != 8 || high) return false;
      operand->index = (int8_t)index;
      int64_t scale = 1;
      if (take(&t, ',') && !take_number(&t, &scale)) return false;
      if (scale != 1 && scale != 2 && scale != 4 && scale != 8) return false;
      operand->scale = (uint8_t)scale;
    } else if (base < 0) {
      return false;
    }
    if (!take(&t, ')')) return false;
  } else if (!displaced || !operand->thread) {
    /* A bare number is an address to one syntax and a value to the other. */
    return false;
  }
  operand->place = RT_MEMORY;
  *text = t;
  return true;
}

static bool take_operand(struct text* text, struct rt_operand* operand) {
  unsigned width = 0;
  bool high = false;
  if (text->at != text->end && *text->at == '$') {
    struct text t = {text->at + 1, text->end};
    if (!take_number(&t, &operand->number)) return false;
    operand->place = RT_CONSTANT;
    *text = t;
    return true;
  }
  struct text t = *text;
  int number = take_register(&t, &width, &high);
  if (number >= 0) {
    operand->reg = (int8_t)number;
    operand->place = high ? RT_HIGH_BYTE : RT_REGISTER;
    *text = t;
    return true;
  }
  number = take_vector(&t);
  if (number >= 0) {
    operand->reg = (int8_t)number;
    operand->place = RT_VECTOR;
    *text = t;
    return true;
  }
  return take_memory(text, operand);
}

/* "N@": a size in bytes, negative of a signed value, and perhaps `f`. */
static bool take_size(struct text* text, struct rt_operand* operand) {
  int64_t size;
  struct text t = *text;
  if (!take_number(&t, &size)) return false;
  operand->is_float = take(&t, 'f');
  if (!take(&t, '@')) return false;
  operand->is_signed = size < 0;
  if (size < 0) size = -size;
  if (size != 1 && size != 2 && size != 4 && size != 8) return false;
  operand->size = (uint8_t)size;
  *text = t;
  return true;
}

/* Up to the blank that ends the argument: none stands in an operand of x86-64 but in Intel's
 * syntax, which is not understood here. */
static struct text next_argument(struct text* text) {
  while (take(text, ' ')) continue;
  struct text argument = {text->at, text->at};
  while (argument.end != text->end && *argument.end != ' ') ++argument.end;
  text->at = argument.end;
  return argument;
}

unsigned rt_parse_arguments(const char* arguments, struct rt_operand* operands) {
  struct text text = {arguments, arguments + strlen(arguments)};
  unsigned count = 0;
  for (;;) {
    struct text argument = next_argument(&text);
    if (argument.at == argument.end) return count;
    if (count < RT_MOST_ARGUMENTS) {
      struct rt_operand operand = {.reg = -1, .index = -1, .scale = 1};
      const bool known = take_size(&argument, &operand) && take_operand(&argument, &operand) &&
                         argument.at == argument.end;
      if (!known) operand.place = RT_NOTHING;
      operands[count] = operand;
    }
    ++count;
  }
}
