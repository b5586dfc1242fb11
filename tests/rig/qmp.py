# SPDX-License-Identifier: GPL-2.0-or-later
"""A QMP client: commands, errors, events, nothing else."""
import json
import socket
import time


class QmpError(Exception):
    """QEMU refused a command, or is gone."""

    def __init__(self, command, text, kind='GenericError'):
        super().__init__(f'{command}: {text}')
        self.command = command
        self.text = text
        self.kind = kind


class Closed(QmpError):
    """QEMU closed the connection: it has ended or crashed."""


class Qmp:
    """One connection to a QMP unix socket."""

    def __init__(self, path, alive=lambda: True, timeout=30):
        self.events = []
        self._buffer = b''
        self._socket = self._connect(path, alive, timeout)
        greeting = self._read('greeting', timeout)
        self.version = greeting['QMP']['version']
        self.command('qmp_capabilities')

    @staticmethod
    def _connect(path, alive, timeout):
        end = time.monotonic() + timeout
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
                return connection
            except OSError as error:
                connection.close()
                if not alive():
                    raise Closed('connect', 'QEMU ended at start') from error
                if time.monotonic() > end:
                    raise Closed('connect', f'{path}: {error}') from error
                time.sleep(0.01)

    def _read(self, command, timeout):
        """The next message, or None when there is none in time."""
        end = time.monotonic() + timeout
        while b'\n' not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                return None
            except OSError as error:
                raise Closed(command, str(error)) from error
            if not data:
                raise Closed(command, 'QEMU closed the connection')
            self._buffer += data
        line, self._buffer = self._buffer.split(b'\n', 1)
        return json.loads(line)

    def command(self, name, arguments=None, timeout=120):
        """Run a command; its answer, or QmpError."""
        text = {'execute': name}
        if arguments:
            text['arguments'] = arguments
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(json.dumps(text).encode() + b'\n')
        except OSError as error:
            raise Closed(name, str(error)) from error
        end = time.monotonic() + timeout
        while True:
            answer = self._read(name, end - time.monotonic())
            if answer is None:
                raise QmpError(name, f'no answer in {timeout} s', 'Timeout')
            if 'event' in answer:
                self.events.append(answer)
            elif 'error' in answer:
                error = answer['error']
                raise QmpError(name, error['desc'], error['class'])
            elif 'return' in answer:
                return answer['return']

    def wait_event(self, name, timeout=60, match=lambda data: True):
        """Take events off the list until one of this name is there."""
        end = time.monotonic() + timeout
        while True:
            while self.events:
                event = self.events.pop(0)
                if event['event'] == name and match(event.get('data', {})):
                    return event
            answer = self._read(name, end - time.monotonic())
            if answer is None:
                raise QmpError(name, f'no such event in {timeout} s',
                               'Timeout')
            if 'event' in answer:
                self.events.append(answer)

    def close(self):
        """Let go of the socket."""
        self._socket.close()
