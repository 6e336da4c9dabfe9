// What stands in for the driver's loader: which kernels an image holds, PTX or machine code for compute capability 9.0. They
// run as they were compiled for the processor; the image says only whether a card would have them.
#pragma once
#include <elf.h>

#include <cstring>
#include <set>
#include <string>

namespace image {
using Names = std::set<std::string>;

// CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_INVALID_PTX.
constexpr int NO_IMAGE = 200, OTHER_CARD = 209, NO_PTX = 218;
constexpr int MACHINE = 190, ARCHITECTURE = 90;
// A name that no kernel has, among those of machine code.
constexpr const char *MACHINE_CODE = "";

// Kernels of PTX, all of which must be there: a function from elsewhere is one that nobody has.
inline int of_ptx(Names &names, const char *text) {
    if (strstr(text, ".extern .func")) return NO_PTX;
    const char *entry = ".entry ";
    for (const char *at = strstr(text, entry); at; at = strstr(at, entry)) {
        at += strlen(entry);
        names.insert(std::string(at, strcspn(at, "(")));
    }
    return 0;
}

// Kernels of machine code: each has its instructions in a section `.text.` with its name.
inline int of_machine_code(Names &names, const char *bytes) {
    Elf64_Ehdr head;
    memcpy(&head, bytes, sizeof head);
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != MACHINE) return NO_IMAGE;
    // The architecture is the lowest byte of the flags, from CUDA 13 on the one above.
    if ((head.e_flags & 0xff) != ARCHITECTURE && (head.e_flags >> 8 & 0xff) != ARCHITECTURE) return OTHER_CARD;
    auto section = [&](int i) {
        Elf64_Shdr out;
        memcpy(&out, bytes + head.e_shoff + (size_t)i * head.e_shentsize, sizeof out);
        return out;
    };
    names.insert(MACHINE_CODE);
    const char *strings = bytes + section(head.e_shstrndx).sh_offset, *text = ".text.";
    for (int i = 1; i < head.e_shnum; i++) {
        const char *name = strings + section(i).sh_name;
        if (!strncmp(name, text, strlen(text))) names.insert(name + strlen(text));
    }
    return 0;
}

inline int load(void **out, const void *image) {
    Names names;
    const char *bytes = (const char *)image;
    int answer = NO_IMAGE;
    if (!strncmp(bytes, ".version", 8)) answer = of_ptx(names, bytes);
    else if (!memcmp(bytes, ELFMAG, SELFMAG)) answer = of_machine_code(names, bytes);
    if (answer == 0) *out = new Names(names);
    return answer;
}
}
