/* The floor of a scan of all processes: reads stat and environ of each, and keeps nothing. One read of each is enough:
 * /proc returns the whole file, as far as the buffer has room. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char buffer[1 << 18];

static ssize_t slurp(int proc, const char *pid, const char *file)
{
	char path[64];
	ssize_t length;

	snprintf(path, sizeof path, "%s/%s", pid, file);
	int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	length = read(fd, buffer, sizeof buffer);
	close(fd);
	return length;
}

int main(int argc, char **argv)
{
	DIR *dir = opendir("/proc");
	const char *mark = argc > 1 ? argv[1] : "MARK=1";
	int seen = 0, marked = 0;
	struct dirent *entry;

	if (!dir)
		return 1;
	while ((entry = readdir(dir))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		if (slurp(dirfd(dir), entry->d_name, "stat") > 0)
			seen++;
		ssize_t length = slurp(dirfd(dir), entry->d_name, "environ");
		if (length > 0 && memmem(buffer, length, mark, strlen(mark)))
			marked++;
	}
	closedir(dir);
	printf("%d %d\n", seen, marked);
	return seen == 0;
}
