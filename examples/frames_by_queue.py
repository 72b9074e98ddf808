"""Producers draw frames straight into a queue's slots; an asyncio program prints the frames that it gets."""

import asyncio
import multiprocessing
import queue

import numpy as np

import slipring

PRODUCERS, FRAMES = 2, 50


def draw(q, number):
    for i in range(FRAMES):
        with q.slot() as slot:
            frame = slot.empty((480, 640, 3), np.uint8)
            frame[...] = i
            slot.put({"camera": number, "index": i, "frame": frame}, move=True)
            del frame  # the slot becomes free when no process refers to the array


async def show(q):
    loop, more = asyncio.get_running_loop(), asyncio.Event()
    seen = [0] * PRODUCERS
    loop.add_reader(q, more.set)
    while sum(seen) < PRODUCERS * FRAMES:
        more.clear()
        try:
            while True:
                got = q.get_nowait()  # got["frame"] is a view of the slot
                assert got["index"] == seen[got["camera"]] and (got["frame"] == got["index"]).all()
                seen[got["camera"]] += 1
        except queue.Empty:
            await more.wait()
    loop.remove_reader(q)
    print(f"{seen} frames, in order, of each camera")


def main():
    q = slipring.Queue(8)
    producers = [multiprocessing.Process(target=draw, args=(q, number)) for number in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    asyncio.run(show(q))
    for producer in producers:
        producer.join()


if __name__ == "__main__":
    main()
