/*
 * Entry code of the test guest.
 *
 * PVH entry: 32-bit protected mode, paging off, %ebx = start info. Maps the
 * first 4 GiB one to one (2 MiB pages that user code may use), goes to long
 * mode and calls C. Further CPUs come through the trampoline at 0x8000.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
        .set    STACK, 16384            /* per CPU, ring 0 */
        .set    CPUS, 4

        .section .note.pvh, "a", @note
        .align  4
        .long   4, 4, 18                /* name, value, PVH entry */
        .asciz  "Xen"
        .long   _start

        .section .head, "ax", @progbits
        .code32
        .globl  _start
_start:
        cli
        cld
        movl    %ebx, start_info
        movl    $pd, %edi
        movl    $0x87, %eax             /* present, write, user, large */
        movl    $2048, %ecx
1:      movl    %eax, (%edi)
        addl    $8, %edi
        addl    $0x200000, %eax
        decl    %ecx
        jnz     1b
        movl    $pd + 7, %eax
        movl    $pdpt, %edi
        movl    $4, %ecx
2:      movl    %eax, (%edi)
        addl    $8, %edi
        addl    $0x1000, %eax
        decl    %ecx
        jnz     2b
        movl    $pdpt + 7, pml4
        lgdt    gdt_pointer
        ljmp    $0x40, $enter64

enter64:                                /* every CPU, 32-bit code */
        movl    $0x10, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        movl    $0x20, %eax             /* PAE */
        movl    %eax, %cr4
        movl    $pml4, %eax
        movl    %eax, %cr3
        movl    $0xc0000080, %ecx       /* EFER: long mode */
        rdmsr
        orl     $0x100, %eax
        wrmsr
        movl    $0x80010033, %eax       /* paging, write protect, ... */
        movl    %eax, %cr0
        ljmp    $0x08, $long_mode

        .code64
long_mode:
        movl    $1, %edi
        lock xaddl %edi, cpu_count      /* our number */
        movl    %edi, %eax
        incl    %eax
        imull   $STACK, %eax, %eax
        leaq    stacks(%rax), %rsp
        xorl    %ebp, %ebp
        call    guest_main
3:      hlt
        jmp     3b

/*
 * void enter_ring3(void (*code)(u64), void *stack, u64 argument, u64 flags)
 * There is no way back but an exception: software interrupts and the return
 * from a system call do not work on every KVM that we test on.
 */
        .globl  enter_ring3
enter_ring3:
        movl    $0x23, %eax
        movl    %eax, %ds
        movl    %eax, %es
        pushq   $0x23
        pushq   %rsi
        pushq   %rcx
        pushq   $0x2b
        pushq   %rdi
        movq    %rdx, %rdi
        iretq

/* Exceptions: 32 entries of 16 bytes, which push error code and vector. */
        .globl  vectors
        .align  16
vectors:
        .set    i, 0
        .rept   32
        .align  16
        .if     !(i == 8 || (i >= 10 && i <= 14) || i == 17 || i == 21)
        pushq   $0
        .endif
        pushq   $i
        jmp     trapped
        .set    i, i + 1
        .endr
trapped:
        movq    %rsp, %rdi              /* vector, error, rip, cs, ... */
        cld
        call    trap
4:      hlt
        jmp     4b

/* Where further CPUs start, copied to 0x8000. */
        .globl  ap_start, ap_end
        .code16
ap_start:
        cli
        xorw    %ax, %ax
        movw    %ax, %ds
        lgdtl   0x8000 + (ap_gdt - ap_start)
        movl    %cr0, %eax
        orl     $1, %eax
        movl    %eax, %cr0
        ljmpl   $0x40, $enter64
        .align  4
ap_gdt: .word   gdt_end - gdt - 1
        .long   gdt
ap_end:

        .data
        .align  16
        .globl  gdt
gdt:    .quad   0
        .quad   0x00af9b000000ffff      /* 08 kernel code, 64 bits */
        .quad   0x00cf93000000ffff      /* 10 kernel data */
        .quad   0x00cffb000000ffff      /* 18 user code, 32 bits */
        .quad   0x00cff3000000ffff      /* 20 user data */
        .quad   0x00affb000000ffff      /* 28 user code, 64 bits */
        .quad   0, 0
        .quad   0x00cf9b000000ffff      /* 40 kernel code, 32 bits */
        .quad   0
        .fill   2 * CPUS, 8, 0          /* 50 and on: one TSS per CPU */
gdt_end:
gdt_pointer:
        .word   gdt_end - gdt - 1
        .long   gdt
        .globl  cpu_count, start_info
cpu_count:
        .long   0
start_info:
        .long   0

        .bss
        .align  4096
        .globl  pml4, pdpt
pml4:   .skip   4096
pdpt:   .skip   4096
pd:     .skip   4 * 4096
stacks: .skip   CPUS * STACK

        .section .note.GNU-stack, "", @progbits
