# want: dirty-log.c 1
/^  'kvm-all.c',$/i\
  'dirty-log.c',
