# SPDX-License-Identifier: GPL-2.0-or-later
# want: $(src)/../../.. 2
# drop: $(srctree)/ 2
s,\$(srctree)/,$(src)/../../../,
