/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What spatch needs to know to parse the files that the rules here change. */
#define LIST_HEAD(n) int n
#define __read_mostly
