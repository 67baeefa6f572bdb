# Operations on files, and what comes of them. It runs in an empty directory, by busybox alone, as
# root; its output must be the same in a guest and on the host.

umask 022
say() { echo "== $*"; }
# Type, mode, owner, size (not of directories), links and time of each file; contents; targets.
show() {
    find . ! -name . | sort | while read -r f; do
        if [ -d "$f" ] && [ ! -L "$f" ]; then stat -c '%n %F %a %u:%g' "$f"
        else stat -c '%n %F %a %u:%g %s %h %t.%T' "$f"; fi
        if [ -L "$f" ]; then readlink "$f"
        elif [ -f "$f" ]; then md5sum <"$f"; fi
    done
}

say make
mkdir -p d/e/f && echo one >d/one && echo two >d/e/two && : >empty
ln d/one d/uno && ln -s ../d/one d/link && ln -s nowhere dangling
mkfifo fifo && mknod null c 1 3 && mknod zero b 7 5
show

say names
touch 'a name with  spaces' "$(printf 'new\tline')" "$(printf 'n%.0s' $(seq 250))"
touch "$(printf 'n%.0s' $(seq 256))" 2>&1
mkdir d 2>&1; rmdir d 2>&1; rmdir empty 2>&1; rm d 2>&1; cat nowhere 2>&1; cat d 2>&1; mkdir no/dir 2>&1
ls | wc -l

say move
mv d/e/two d/zwei && mv d/e g && mv d/uno empty && mv g d/g && cat empty
mv d d/g/d 2>&1
ln -s loop loop; cat loop 2>&1
show

say contents
seq 1 20000 >long && md5sum long && wc -c <long
echo more >>long && tail -n 1 long && truncate -s 1000 long && md5sum long
truncate -s 3000000 long && md5sum long
dd if=/dev/zero bs=1000 count=3 seek=5000 2>/dev/null | cat >>long
printf x | dd of=long bs=1 seek=123456 conv=notrunc 2>/dev/null && md5sum long
dd if=long bs=70000 skip=1 count=9 2>/dev/null | md5sum
dd if=long of=copied bs=1048576 2>/dev/null && cmp long copied && rm long copied
i=0; while [ $i -lt 50 ]; do echo "line $i" >>appended; i=$((i + 1)); done; md5sum appended

say attributes
chmod 4755 empty && chown 12:34 empty && stat -c '%a %u:%g' empty
chmod 6755 empty && echo x >>empty && stat -c '%a' empty
touch -d '2001-02-03 04:05:06' d && stat -c '%Y' d
touch -d '1969-12-31 23:00:00' empty && stat -c '%Y' empty
mkdir s && chown 0:55 s && chmod 2775 s && touch s/f && mkdir s/d && stat -c '%a %u:%g' s/f s/d
chown -h 7:8 dangling && stat -c '%u:%g' dangling
stat -c '%a' d/one && chmod 0 d/one && cat d/one

say users
mkdir -m 1777 shared && echo secret >shared/mine && chmod 600 shared/mine
echo group >shared/groups && chown 0:77 shared/groups && chmod 640 shared/groups
# Users that each Debian has.
as() { start-stop-daemon -S -q -n nothing -c "$1" -x "$(command -v sh)" -- -c "$2" 2>&1; }
as 1:1 'cat shared/mine; cat shared/groups; echo x >shared/groups; rm -f shared/mine; touch no'
as 1:77 'cat shared/groups; echo x >shared/groups; touch -d 2001-02-03 shared/groups; id -u; id -g'
as 1:1 'echo his >shared/his; chmod 600 shared/his; stat -c "%a %u:%g" shared/his; chown 0 shared/his'
as 2:2 'cat shared/his; mv shared/his shared/hers; chmod 644 shared/his'
as 1:1 'ln -s his shared/l; mv shared/his shared/moved; cat shared/moved; rm shared/moved shared/l'
stat -c '%a %u:%g' shared

say open
echo kept >held && exec 3<held && rm held && cat <&3 && exec 3<&-
mkdir gone && (cd gone && rmdir ../gone && ls -a; touch f 2>&1)
exec 4>>written && echo a >&4 && mv written renamed && echo b >&4 && exec 4>&- && cat renamed

say many
mkdir many && (cd many && for i in $(seq 100); do echo "$i" >"f$i"; done)
ls many | sort | md5sum && cat many/* | sort -n | md5sum
(cd many && for i in $(seq 1 2 100); do mv "f$i" "g$i"; done; rm -f f1*) && ls many | sort | md5sum
tar cf all.tar many && mkdir out && tar xf all.tar -C out && diff -r many out/many && rm -r out all.tar many
ls -a | wc -l
show
