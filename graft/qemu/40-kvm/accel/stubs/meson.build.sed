# SPDX-License-Identifier: GPL-2.0-or-later
# want: kvm-dirty-log-stub.c 1
/if_false: files('kvm-stub.c')/s/'kvm-stub.c'/'kvm-stub.c', 'kvm-dirty-log-stub.c'/
