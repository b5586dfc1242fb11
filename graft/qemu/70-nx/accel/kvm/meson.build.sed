# want: nx-recovery.c 1
/^  'kvm-all.c',$/a\
  'nx-recovery.c',
